'use strict';
// The unmodified gRPC client of RocketMQ for JavaScript (npm's rocketmq-client-nodejs), driven from a test as
// java/GrpcDriver.java is: one JSON request a line on stdin, one JSON reply a line on stdout.

const readline = require('readline');
const {
  ConsumeResult, FilterExpression, LitePushConsumerBuilder, Producer, PushConsumer, SimpleConsumer,
} = require('rocketmq-client-nodejs');
const { FilterType, TransactionResolution } = require('rocketmq-client-nodejs/proto/apache/rocketmq/v2/definition_pb');

const MESSAGE_NOT_FOUND = 40401;
const objects = new Map();
let handles = 0;

function keep(object) {
  objects.set(++handles, object);
  return handles;
}

const logger = { debug() {}, info() {}, warn: console.error, error: console.error, close() {} };

function options(given) {
  return { endpoints: given.endpoints, namespace: '', sslEnabled: Boolean(given.tls), requestTimeout: 10000, logger };
}

function filters(given) {
  const made = new Map();
  for (const [topic, [kind, expression]] of Object.entries(given.subscriptions)) {
    made.set(topic, new FilterExpression(expression, kind === 'SQL92' ? FilterType.SQL : FilterType.TAG));
  }
  return made;
}

function message(given) {
  const made = { topic: given.topic, body: Buffer.from(given.body, 'base64') };
  if (given.tag !== undefined) made.tag = given.tag;
  if (given.keys !== undefined) made.keys = given.keys;
  if (given.group !== undefined) made.messageGroup = given.group;
  if (given.lite_topic !== undefined) made.liteTopic = given.lite_topic;
  if (given.delay_ms !== undefined) made.delay = given.delay_ms;
  if (given.priority !== undefined) made.priority = given.priority;
  if (given.properties !== undefined) made.properties = new Map(Object.entries(given.properties));
  return made;
}

function shown(got) {
  return {
    id: got.messageId,
    topic: got.topic,
    lite_topic: got.liteTopic,
    body: got.body.toString('base64'),
    tag: got.tag,
    keys: got.keys,
    group: got.messageGroup,
    priority: got.priority,
    delivery_timestamp: got.deliveryTimestamp && got.deliveryTimestamp.getTime(),
    properties: Object.fromEntries(got.properties),
    born_host: got.bornHost,
    born_timestamp: got.bornTimestamp && got.bornTimestamp.getTime(),
    attempt: got.deliveryAttempt,
  };
}

function receipt(sent) {
  return { id: sent.messageId, recall_handle: sent.recallHandle };
}

// What a push consumer gets, in the order of delivery; it fails each message so often.
function listener(failures) {
  const failed = new Map();
  const received = [];
  return {
    received,
    consume(got) {
      received.push(got);
      const times = (failed.get(got.messageId) || 0) + 1;
      failed.set(got.messageId, times);
      return times <= failures ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
    },
  };
}

function pushed(consumer, heard) {
  consumer.heard = heard;
  return { handle: keep(consumer) };
}

const verbs = {
  async 'producer.start'(given) {
    const checked = [];
    const checker = given.checker && {
      async check(view) {
        checked.push(view.body.toString('base64'));
        return TransactionResolution[given.checker];
      },
    };
    const made = new Producer({ ...options(given), topics: given.topics, checker });
    made.checked = checked;
    await made.startup();
    return { handle: keep(made) };
  },

  // One message after the other, or all at once with "together".
  async 'producer.send'(given) {
    const producer = objects.get(given.handle);
    if (given.together) {
      return (await Promise.all(given.messages.map(each => producer.send(message(each))))).map(receipt);
    }
    const sent = [];
    for (const each of given.messages) sent.push(receipt(await producer.send(message(each))));
    return sent;
  },

  async 'producer.recall'(given) {
    return (await objects.get(given.handle).recallMessage(given.topic, given.recall_handle)).messageId;
  },

  // A message in a transaction that ends with commit, rollback or, for now, not at all.
  async 'producer.transact'(given) {
    const producer = objects.get(given.handle);
    const transaction = producer.beginTransaction();
    const sent = await producer.send(message(given.message), transaction);
    if (given.end === 'commit') await transaction.commit();
    if (given.end === 'rollback') await transaction.rollback();
    return receipt(sent);
  },

  async 'producer.checked'(given) {
    return objects.get(given.handle).checked;
  },

  async 'simple.start'(given) {
    const made = new SimpleConsumer({
      ...options(given), consumerGroup: given.group, subscriptions: filters(given), awaitDuration: given.await_ms,
    });
    await made.startup();
    return { handle: keep(made) };
  },

  // An empty list when there is no message, whether the client says so or throws it.
  async 'simple.receive'(given) {
    try {
      const received = await objects.get(given.handle).receive(given.max, given.invisible_ms);
      return received.map(got => ({ ...shown(got), view: keep(got) }));
    } catch (error) {
      if (error.code === MESSAGE_NOT_FOUND) return [];
      throw error;
    }
  },

  async 'simple.ack'(given) {
    await objects.get(given.handle).ack(objects.get(given.view));
  },

  async 'simple.change'(given) {
    await objects.get(given.handle).changeInvisibleDuration(objects.get(given.view), given.invisible_ms);
  },

  async 'push.start'(given) {
    const heard = listener(given.failures || 0);
    const made = new PushConsumer({
      ...options(given), consumerGroup: given.group, subscriptions: filters(given), messageListener: heard,
      longPollingTimeout: 5000,
    });
    await made.startup();
    return pushed(made, heard);
  },

  async 'lite.start'(given) {
    const heard = listener(0);
    const made = await new LitePushConsumerBuilder()
      .setClientConfiguration(options(given))
      .setConsumerGroup(given.group)
      .bindTopic(given.topic)
      .setMessageListener(heard)
      .build();
    return pushed(made, heard);
  },

  async 'lite.subscribe'(given) {
    await objects.get(given.handle).subscribeLite(given.topic);
  },

  async 'lite.unsubscribe'(given) {
    await objects.get(given.handle).unsubscribeLite(given.topic);
  },

  // So many messages, or what has come when the time is over.
  async 'push.take'(given) {
    const { received } = objects.get(given.handle).heard;
    const deadline = Date.now() + given.timeout_ms;
    while (received.length < given.count && Date.now() < deadline) {
      await new Promise(resolve => setTimeout(resolve, 20));
    }
    return received.splice(0, given.count).map(shown);
  },

  async stop(given) {
    const stopped = objects.get(given.handle);
    objects.delete(given.handle);
    await stopped.shutdown();
  },
};

// What the client prints must not come between.
const write = process.stdout.write.bind(process.stdout);
console.log = console.info = console.debug = console.error;

function reply(answer) {
  write(`${JSON.stringify(answer)}\n`);
}

process.on('unhandledRejection', error => console.error('unhandled', error));
reply({ id: 0, result: 'ready' });
readline.createInterface({ input: process.stdin })
  .on('line', async line => {
    const { id, do: verb, with: given } = JSON.parse(line);
    try {
      const result = await verbs[verb](given);
      reply({ id, result: result === undefined ? null : result });
    } catch (error) {
      reply({ id, error: { type: error.constructor.name, code: error.code || -1, text: String(error.message) } });
    }
  })
  .on('close', () => process.exit(0));
