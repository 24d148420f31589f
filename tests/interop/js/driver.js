'use strict';
// The unmodified JavaScript client (npm's ali-ons), driven from a test as java/Driver.java is: one JSON request a line
// on stdin, one JSON reply a line on stdout. Its producer sends and waits, and its consumer listens; it has no more.

const readline = require('readline');
const { Consumer, Message, Producer } = require('ali-ons');

const objects = new Map();
let handles = 0;

function keep(object) {
  objects.set(++handles, object);
  return { handle: handles };
}

// A client id, and so connections, of its own for each.
function options(given) {
  return {
    httpclient: () => { throw new Error('there is no HTTP here'); },
    nameSrv: given.namesrv.split(';'),
    instanceName: `driver${process.hrtime.bigint()}`,
    namespace: given.namespace || '',
    logger: { debug() {}, info() {}, warn: console.error, error: console.error },
    rebalanceInterval: 1000,
    pollNameServerInteval: 1000,
    heartbeatBrokerInterval: 1000,
    persistConsumerOffsetInterval: 500,
  };
}

function message(given) {
  const made = new Message(given.topic, given.tags === undefined ? null : given.tags, Buffer.from(given.body, 'base64'));
  if (given.keys) made.keys = given.keys;
  if (given.flag) made.flag = given.flag;
  if (given.delay_level) made.delayTimeLevel = given.delay_level;
  if (given.deliver_ms) made.setStartDeliverTime(given.deliver_ms);
  Object.assign(made.properties, given.properties || {});
  if (given.tags === undefined) delete made.properties.TAGS;
  return made;
}

function shown(got) {
  return {
    topic: got.topic,
    body: got.body.toString('base64'),
    tags: got.tags,
    keys: got.keys,
    flag: got.flag,
    msg_id: got.msgId,
    queue_id: got.queueId,
    queue_offset: Number(got.queueOffset),
    physical_offset: Number(got.commitLogOffset),
    store_size: got.storeSize,
    born_timestamp: Number(got.bornTimestamp),
    store_timestamp: Number(got.storeTimestamp),
    born_host: got.bornHost,
    store_host: got.storeHost,
    reconsume_times: got.reconsumeTimes,
    properties: got.properties,
  };
}

const verbs = {
  async 'producer.start'(given) {
    const made = new Producer({ ...options(given), producerGroup: given.group, maxMessageSize: 4 << 20 });
    made.on('error', error => console.error(error));
    await made.ready();
    return keep(made);
  },

  async 'producer.send'(given) {
    const sent = await objects.get(given.handle).send(message(given.message));
    const queue = sent.messageQueue;
    return {
      status: sent.sendStatus === 'SEND_OK' ? 0 : sent.sendStatus,
      msg_id: sent.msgId,
      broker_name: queue.brokerName,
      queue_id: queue.queueId,
      queue_offset: Number(sent.queueOffset),
    };
  },

  // A message's property `failures` says how often its listener fails.
  async 'push.start'(given) {
    const made = new Consumer({
      ...options(given),
      consumerGroup: given.group,
      consumeFromWhere: given.from || 'CONSUME_FROM_FIRST_OFFSET',
      isBroadcast: given.model === 'BROADCASTING',
    });
    const kept = { made, received: [], close: () => made.close() };
    made.on('error', error => console.error(error));
    const expression = given.sql ? { expressionType: 'SQL92', subString: given.sql } : given.expression;
    made.subscribe(given.topic, expression, async got => {
      kept.received.push(shown(got));
      if (got.reconsumeTimes < Number(got.properties.failures || 0)) return Consumer.ACTION_RETRY;
    });
    await made.ready();
    return keep(kept);
  },

  async 'push.take'(given) {
    const { received } = objects.get(given.handle);
    const deadline = Date.now() + given.timeout_ms;
    while (received.length < given.count && Date.now() < deadline) {
      await new Promise(resolve => setTimeout(resolve, 20));
    }
    return received.splice(0, given.count);
  },

  async stop(given) {
    const kept = objects.get(given.handle);
    objects.delete(given.handle);
    await kept.close();
  },
};

function reply(answer) {
  process.stdout.write(JSON.stringify(answer) + '\n');
}

async function serve(request) {
  try {
    const result = await verbs[request.do](request.with);
    reply({ id: request.id, result: result === undefined ? null : result });
  } catch (error) {
    reply({ id: request.id, error: { type: error.name, code: error.code || -1, text: String(error.message) } });
  }
}

process.on('unhandledRejection', error => console.error(error));
reply({ id: 0, result: 'ready' });
const lines = readline.createInterface({ input: process.stdin });
lines.on('line', line => serve(JSON.parse(line)));
lines.on('close', () => process.exit(0));
