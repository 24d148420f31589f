import com.alibaba.fastjson2.JSON;
import com.alibaba.fastjson2.JSONArray;
import com.alibaba.fastjson2.JSONObject;
import com.alibaba.fastjson2.JSONWriter;
import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.io.PrintStream;
import java.lang.reflect.Field;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.Collection;
import java.util.Collections;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.Consumer;
import java.util.stream.Collectors;
import org.apache.commons.cli.CommandLine;
import org.apache.commons.cli.DefaultParser;
import org.apache.commons.cli.Options;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.consumer.AckCallback;
import org.apache.rocketmq.client.consumer.AckResult;
import org.apache.rocketmq.client.consumer.AllocateMessageQueueStrategy;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.PopCallback;
import org.apache.rocketmq.client.consumer.PopResult;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMachineRoomNearby;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragelyByCircle;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueByConfig;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueConsistentHash;
import org.apache.rocketmq.client.consumer.store.ReadOffsetType;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.hook.ConsumeMessageContext;
import org.apache.rocketmq.client.hook.ConsumeMessageHook;
import org.apache.rocketmq.client.hook.SendMessageContext;
import org.apache.rocketmq.client.hook.SendMessageHook;
import org.apache.rocketmq.client.impl.MQClientAPIImpl;
import org.apache.rocketmq.client.impl.MQClientManager;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.RequestCallback;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.producer.TransactionSendResult;
import org.apache.rocketmq.client.producer.selector.SelectMessageQueueByHash;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.common.UtilAll;
import org.apache.rocketmq.common.compression.CompressionType;
import org.apache.rocketmq.common.constant.ConsumeInitMode;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.filter.expression.EvaluationContext;
import org.apache.rocketmq.filter.expression.Expression;
import org.apache.rocketmq.filter.parser.SelectorParser;
import org.apache.rocketmq.remoting.RPCHook;
import org.apache.rocketmq.remoting.protocol.header.AckMessageRequestHeader;
import org.apache.rocketmq.remoting.protocol.header.ChangeInvisibleTimeRequestHeader;
import org.apache.rocketmq.remoting.protocol.header.PopMessageRequestHeader;
import org.apache.rocketmq.remoting.protocol.heartbeat.MessageModel;
import org.apache.rocketmq.srvutil.ServerUtil;
import org.apache.rocketmq.tools.command.MQAdminStartup;
import org.apache.rocketmq.tools.command.SubCommand;

/**
 * The unmodified RocketMQ client, driven from a test: one JSON request a line on stdin, one JSON reply a line on stdout.
 *
 * <p>A request is {@code {"id": n, "do": "noun.verb", "with": {...}}}; the reply carries the same id and either
 * {@code result} or {@code error} (exception class, response code, text). Requests run side by side, so that a long
 * poll may wait while another request sends. Objects that live on (producers, consumers) are named by a handle.
 */
public final class Driver {
    private static final Map<Integer, Object> OBJECTS = new ConcurrentHashMap<>();
    private static final AtomicInteger HANDLES = new AtomicInteger();
    private static final PrintStream REPLIES = System.out;
    /** What the commands of a thread, and the threads that they start, print to: standard output and error. */
    private static final InheritableThreadLocal<OutputStream[]> CONSOLE = new InheritableThreadLocal<>();

    private Driver() {
    }

    /** A push consumer and what its listener was given, in the order of delivery. */
    private static final class Push {
        final DefaultMQPushConsumer consumer;
        final BlockingQueue<MessageExt> received = new LinkedBlockingQueue<>();
        /** Opened by {@code push.let_go}; a listener told to wait waits for it. */
        final CountDownLatch gate = new CountDownLatch(1);

        Push(DefaultMQPushConsumer consumer) {
            this.consumer = consumer;
        }
    }

    /** What hooks of a group's producer or consumer were called for, in order. */
    private static final Map<String, List<String>> HOOKED = new ConcurrentHashMap<>();

    private static final class Hooks implements SendMessageHook, ConsumeMessageHook {
        @Override
        public String hookName() {
            return "driver";
        }

        private void note(String group, String what) {
            HOOKED.computeIfAbsent(group, ignored -> Collections.synchronizedList(new ArrayList<>())).add(what);
        }

        @Override
        public void sendMessageBefore(SendMessageContext context) {
            note(context.getProducerGroup(), "before");
        }

        @Override
        public void sendMessageAfter(SendMessageContext context) {
            note(context.getProducerGroup(), "after " + context.getSendResult().getSendStatus());
        }

        @Override
        public void consumeMessageBefore(ConsumeMessageContext context) {
            note(context.getConsumerGroup(), "before");
        }

        @Override
        public void consumeMessageAfter(ConsumeMessageContext context) {
            note(context.getConsumerGroup(), "after " + context.getStatus());
        }
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream log = System.err;
        System.setOut(new PrintStream(new Console(0, log), true, StandardCharsets.UTF_8));
        System.setErr(new PrintStream(new Console(1, log), true, StandardCharsets.UTF_8));
        ExecutorService workers = Executors.newCachedThreadPool(task -> {
            Thread thread = new Thread(task, "driver");
            thread.setDaemon(true);
            return thread;
        });
        BufferedReader requests = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        reply(JSONObject.of("id", 0L, "result", "ready"));
        for (String line = requests.readLine(); line != null; line = requests.readLine()) {
            JSONObject request = JSON.parseObject(line);
            workers.execute(() -> serve(request));
        }
        // stdin closed: the test session is over, or died. No orderly shutdown, so that nothing can hang here.
        Runtime.getRuntime().halt(0);
    }

    private static void serve(JSONObject request) {
        JSONObject reply = JSONObject.of("id", request.getLongValue("id"));
        try {
            reply.put("result", perform(request.getString("do"), request.getJSONObject("with")));
        } catch (Throwable thrown) {
            reply.put("error", describe(thrown));
        }
        reply(reply);
    }

    private static synchronized void reply(JSONObject reply) {
        byte[] bytes = JSON.toJSONBytes(reply, JSONWriter.Feature.WriteNulls);
        REPLIES.write(bytes, 0, bytes.length);
        REPLIES.write('\n');
        REPLIES.flush();
    }

    private static JSONObject describe(Throwable thrown) {
        int code = thrown instanceof MQBrokerException ? ((MQBrokerException) thrown).getResponseCode()
            : thrown instanceof MQClientException ? ((MQClientException) thrown).getResponseCode() : -1;
        String text = thrown instanceof MQBrokerException ? ((MQBrokerException) thrown).getErrorMessage() : thrown.getMessage();
        return JSONObject.of("type", thrown.getClass().getSimpleName(), "code", code, "text", String.valueOf(text));
    }

    private static Object perform(String verb, JSONObject with) throws Exception {
        switch (verb) {
            case "producer.start": return producerStart(with);
            case "producer.stop": ((DefaultMQProducer) OBJECTS.remove(with.getIntValue("handle"))).shutdown(); return null;
            case "producer.send": return send(object(with), with);
            case "producer.send_batch": return sendBatch(object(with), with);
            case "producer.recall": return ((DefaultMQProducer) object(with)).recallMessage(with.getString("topic"), with.getString("recall_handle"));
            case "producer.send_many": return sendMany(object(with), with);
            case "producer.queues": return queues(((DefaultMQProducer) object(with)).fetchPublishMessageQueues(with.getString("topic")));
            case "producer.create_topic":
                ((DefaultMQProducer) object(with)).createTopic(with.getString("key"), with.getString("topic"), with.getIntValue("queues"), Map.of());
                return null;
            case "producer.request": return request(object(with), with);
            case "echo.start": return echoStart(with);
            case "echo.stop": ((Echo) OBJECTS.remove(with.getIntValue("handle"))).stop(); return null;
            case "transaction.start": return transactionStart(with);
            case "transaction.send": {
                Transactions kept = object(with);
                TransactionSendResult result = kept.producer.sendMessageInTransaction(message(with.getJSONObject("message")), null);
                JSONObject json = sent(result);
                json.put("state", result.getLocalTransactionState().name());
                return json;
            }
            case "transaction.checked": return ((Transactions) object(with)).checked();
            case "transaction.stop": ((Transactions) OBJECTS.remove(with.getIntValue("handle"))).producer.shutdown(); return null;
            case "push.start": return pushStart(with);
            case "push.take": return pushTake(object(with), with);
            case "push.queues": return pushQueues(object(with), with);
            case "push.consumed": return pushConsumed(object(with), with);
            case "push.suspend": ((Push) object(with)).consumer.suspend(); return null;
            case "push.resume": ((Push) object(with)).consumer.resume(); return null;
            case "push.subscribe": ((Push) object(with)).consumer.subscribe(with.getString("topic"), with.getString("expression")); return null;
            case "push.unsubscribe": ((Push) object(with)).consumer.unsubscribe(with.getString("topic")); return null;
            case "push.let_go": ((Push) object(with)).gate.countDown(); return null;
            case "hooked": return HOOKED.getOrDefault(with.getString("group"), List.of());
            case "push.stop": ((Push) OBJECTS.remove(with.getIntValue("handle"))).consumer.shutdown(); return null;
            case "lite.start": return liteStart(with);
            case "lite.poll": return litePoll(object(with), with);
            case "lite.do": return liteDo(object(with), with);
            case "lite.stop": ((DefaultLitePullConsumer) OBJECTS.remove(with.getIntValue("handle"))).shutdown(); return null;
            case "pull.start": return pullStart(with);
            case "pull.pull": return pull(object(with), with);
            case "pull.do": return pullDo(object(with), with);
            case "pull.stop": ((DefaultMQPullConsumer) OBJECTS.remove(with.getIntValue("handle"))).shutdown(); return null;
            case "ordered.pop": return orderedPop(object(with), with);
            case "ordered.do": return orderedDo(object(with), with);
            case "mqadmin": return mqadmin(with);
            case "mqadmin.commands": return Tools.names();
            case "sql.evaluate": return sqlEvaluate(with.getJSONArray("cases"));
            default: throw new IllegalArgumentException("no such request: " + verb);
        }
    }

    @SuppressWarnings("unchecked")
    private static <T> T object(JSONObject with) {
        Object found = OBJECTS.get(with.getIntValue("handle"));
        if (found == null) {
            throw new IllegalStateException("no object has handle " + with.get("handle"));
        }
        return (T) found;
    }

    private static int keep(Object object) {
        int handle = HANDLES.incrementAndGet();
        OBJECTS.put(handle, object);
        return handle;
    }

    /** Each client gets an instance, and so connections and a client id, of its own. */
    private static void configure(ClientConfig client, JSONObject with) {
        client.setNamesrvAddr(with.getString("namesrv"));
        if (with.containsKey("namespace")) {
            client.setNamespace(with.getString("namespace"));
        }
        client.setInstanceName(with.containsKey("instance") ? with.getString("instance") : "driver" + HANDLES.get() + "n" + System.nanoTime());
        client.setVipChannelEnabled(with.getBooleanValue("vip"));
        client.setPollNameServerInterval(1000);
        client.setHeartbeatBrokerInterval(1000);
        client.setUseHeartbeatV2(with.getBooleanValue("heartbeat_v2"));
        client.setPersistConsumerOffsetInterval(500);
    }

    /** Signs all requests with the keys that are given; null without. */
    private static RPCHook signing(JSONObject with) {
        return with.containsKey("access_key")
            ? new AclClientRPCHook(new SessionCredentials(with.getString("access_key"), with.getString("secret_key"))) : null;
    }

    private static JSONObject started(Object kept, ClientConfig client) {
        return JSONObject.of("handle", keep(kept), "client_id", client.buildMQClientId());
    }

    // ---- producer

    /** Two threads of a producer look for batches every five milliseconds, also of one that makes none. */
    private static void restAccumulator(DefaultMQProducer producer) {
        producer.batchMaxDelayMs(100);
    }

    private static Object producerStart(JSONObject with) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(with.getString("group"), signing(with), with.containsKey("trace_topic"), with.getString("trace_topic"));
        configure(producer, with);
        producer.setSendMsgTimeout(with.getIntValue("timeout_ms", 10000));
        if (with.containsKey("in_flight")) {
            producer.setEnableBackpressureForAsyncMode(true);
            producer.setBackPressureForAsyncSendNum(with.getIntValue("in_flight"));
        }
        producer.setAutoBatch(with.getBooleanValue("auto_batch"));
        if (!producer.getAutoBatch()) {
            restAccumulator(producer);
        }
        if (with.getBooleanValue("hooks")) {
            producer.getDefaultMQProducerImpl().registerSendMessageHook(new Hooks());
        }
        if (with.containsKey("compress_over")) {
            producer.setCompressMsgBodyOverHowmuch(with.getIntValue("compress_over"));
        }
        if (with.containsKey("compress_type")) {
            producer.setCompressType(CompressionType.of(with.getString("compress_type")));
        }
        producer.start();
        return started(producer, producer);
    }

    /**
     * A transactional producer. Each message says itself what comes of it: the property {@code local} is the state
     * of the local transaction, {@code checks} the answers to checks, separated by commas; the last one is repeated.
     */
    private static final class Transactions implements TransactionListener {
        final TransactionMQProducer producer;
        private final List<MessageExt> asked = new ArrayList<>();

        Transactions(TransactionMQProducer producer) {
            this.producer = producer;
        }

        @Override
        public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
            return LocalTransactionState.valueOf(message.getUserProperty("local"));
        }

        @Override
        public synchronized LocalTransactionState checkLocalTransaction(MessageExt message) {
            String[] answers = message.getUserProperty("checks").split(",");
            long before = asked.stream().filter(other -> other.getTransactionId().equals(message.getTransactionId())).count();
            asked.add(message);
            return LocalTransactionState.valueOf(answers[(int) Math.min(before, answers.length - 1)]);
        }

        synchronized JSONArray checked() {
            JSONArray array = new JSONArray();
            asked.forEach(one -> array.add(message(one)));
            return array;
        }
    }

    /** By callback: the blocking form gives up as soon as the message is sent. A call without a message is that, too. */
    private static Object request(DefaultMQProducer producer, JSONObject with) throws Exception {
        CompletableFuture<Message> outcome = new CompletableFuture<>();
        producer.request(message(with.getJSONObject("message")), new RequestCallback() {
            @Override
            public void onSuccess(Message reply) {
                if (reply != null) {
                    outcome.complete(reply);
                }
            }

            @Override
            public void onException(Throwable thrown) {
                outcome.completeExceptionally(thrown);
            }
        }, with.getIntValue("timeout_ms"));
        try {
            return message((MessageExt) outcome.get(60, TimeUnit.SECONDS));
        } catch (java.util.concurrent.ExecutionException wrapped) {
            throw wrapped.getCause() instanceof Exception ? (Exception) wrapped.getCause() : wrapped;
        }
    }

    /** A consumer that answers every message with {@code re: } and its body. */
    private static final class Echo {
        final DefaultMQPushConsumer consumer;
        final DefaultMQProducer producer;

        Echo(DefaultMQPushConsumer consumer, DefaultMQProducer producer) {
            this.consumer = consumer;
            this.producer = producer;
        }

        void stop() {
            consumer.shutdown();
            producer.shutdown();
        }
    }

    private static Object echoStart(JSONObject with) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(with.getString("group") + "-replies");
        configure(producer, with);
        restAccumulator(producer);
        producer.start();
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(with.getString("group"));
        configure(consumer, with);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(with.getString("topic"), "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt one : messages) {
                try {
                    byte[] body = ("re: " + new String(one.getBody(), StandardCharsets.UTF_8)).getBytes(StandardCharsets.UTF_8);
                    producer.send(MessageUtil.createReplyMessage(one, body), 10000);
                } catch (Exception failed) {
                    return ConsumeConcurrentlyStatus.RECONSUME_LATER;
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        return started(new Echo(consumer, producer), consumer);
    }

    private static Object transactionStart(JSONObject with) throws Exception {
        TransactionMQProducer producer = new TransactionMQProducer(with.getString("group"));
        configure(producer, with);
        Transactions kept = new Transactions(producer);
        producer.setTransactionListener(kept);
        restAccumulator(producer);
        producer.start();
        return started(kept, producer);
    }

    private static Message message(JSONObject json) {
        Message message = new Message(json.getString("topic"), Base64.getDecoder().decode(json.getString("body")));
        if (json.containsKey("tags")) {
            message.setTags(json.getString("tags"));
        }
        if (json.containsKey("keys")) {
            message.setKeys(json.getString("keys"));
        }
        if (json.containsKey("wait")) {
            message.setWaitStoreMsgOK(json.getBooleanValue("wait"));
        }
        if (json.containsKey("delay_level")) {
            message.setDelayTimeLevel(json.getIntValue("delay_level"));
        }
        if (json.containsKey("delay_sec")) {
            message.setDelayTimeSec(json.getLongValue("delay_sec"));
        }
        if (json.containsKey("delay_ms")) {
            message.setDelayTimeMs(json.getLongValue("delay_ms"));
        }
        if (json.containsKey("deliver_ms")) {
            message.setDeliverTimeMs(json.getLongValue("deliver_ms"));
        }
        if (json.containsKey("priority")) {
            message.setPriority(json.getIntValue("priority"));
        }
        message.setFlag(json.getIntValue("flag"));
        JSONObject properties = json.getJSONObject("properties");
        if (properties != null) {
            properties.forEach((name, value) -> message.putUserProperty(name, String.valueOf(value)));
        }
        return message;
    }

    private static Object send(DefaultMQProducer producer, JSONObject with) throws Exception {
        Message message = message(with.getJSONObject("message"));
        MessageQueue queue = with.containsKey("queue") ? queue(with.getJSONArray("queue")) : null;
        Object shardingKey = with.get("sharding_key");
        switch (with.getString("mode")) {
            case "sync":
                return sent(queue != null ? producer.send(message, queue)
                    : shardingKey != null ? producer.send(message, new SelectMessageQueueByHash(), shardingKey)
                    : producer.send(message));
            case "async": {
                CompletableFuture<SendResult> outcome = new CompletableFuture<>();
                if (queue != null) {
                    producer.send(message, queue, completing(outcome));
                } else if (shardingKey != null) {
                    producer.send(message, new SelectMessageQueueByHash(), shardingKey, completing(outcome));
                } else {
                    producer.send(message, completing(outcome));
                }
                return sent(join(outcome));
            }
            case "oneway":
                if (queue != null) {
                    producer.sendOneway(message, queue);
                } else {
                    producer.sendOneway(message);
                }
                return null;
            default:
                throw new IllegalArgumentException(with.getString("mode"));
        }
    }

    private static Object sendBatch(DefaultMQProducer producer, JSONObject with) throws Exception {
        List<Message> messages = new ArrayList<>();
        JSONArray array = with.getJSONArray("messages");
        for (int i = 0; i < array.size(); i++) {
            messages.add(message(array.getJSONObject(i)));
        }
        return sent(with.containsKey("queue") ? producer.send(messages, queue(with.getJSONArray("queue"))) : producer.send(messages));
    }

    /** Bodies are {@code prefix-i}; results in the order of i whatever the mode. */
    private static Object sendMany(DefaultMQProducer producer, JSONObject with) throws Exception {
        int count = with.getIntValue("count");
        boolean async = "async".equals(with.getString("mode"));
        List<CompletableFuture<SendResult>> outcomes = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            Message message = new Message(with.getString("topic"), with.getString("tags"), "key-" + i,
                (with.getString("prefix") + "-" + i).getBytes(StandardCharsets.UTF_8));
            CompletableFuture<SendResult> outcome = new CompletableFuture<>();
            outcomes.add(outcome);
            if (async) {
                producer.send(message, completing(outcome));
            } else {
                outcome.complete(producer.send(message));
            }
        }
        JSONArray results = new JSONArray();
        for (CompletableFuture<SendResult> outcome : outcomes) {
            results.add(sent(join(outcome)));
        }
        return results;
    }

    private static SendResult join(CompletableFuture<SendResult> outcome) throws Exception {
        try {
            return outcome.get(30, TimeUnit.SECONDS);
        } catch (java.util.concurrent.ExecutionException wrapped) {
            throw wrapped.getCause() instanceof Exception ? (Exception) wrapped.getCause() : wrapped;
        }
    }

    private static SendCallback completing(CompletableFuture<SendResult> outcome) {
        return new SendCallback() {
            @Override
            public void onSuccess(SendResult result) {
                outcome.complete(result);
            }

            @Override
            public void onException(Throwable thrown) {
                outcome.completeExceptionally(thrown);
            }
        };
    }

    private static JSONObject sent(SendResult result) {
        return JSONObject.of("status", result.getSendStatus().name(), "msg_id", result.getMsgId(),
            "offset_msg_id", result.getOffsetMsgId(), "queue", queue(result.getMessageQueue()),
            "queue_offset", result.getQueueOffset(), "transaction_id", result.getTransactionId(),
            "region", result.getRegionId(), "trace_on", result.isTraceOn(), "recall_handle", result.getRecallHandle());
    }

    // ---- push consumer

    private static Object pushStart(JSONObject with) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(with.getString("group"), signing(with), new AllocateMessageQueueAveragely(), with.containsKey("trace_topic"), with.getString("trace_topic"));
        configure(consumer, with);
        if (with.containsKey("allocation")) {
            consumer.setAllocateMessageQueueStrategy(strategy(with));
        }
        consumer.setPullThresholdForQueue(with.getIntValue("cached", 1000));
        if (with.getBooleanValue("hooks")) {
            consumer.getDefaultMQPushConsumerImpl().registerConsumeMessageHook(new Hooks());
        }
        consumer.setMessageModel(MessageModel.valueOf(with.getString("model")));
        consumer.setConsumeFromWhere(ConsumeFromWhere.valueOf(with.getString("from")));
        if (with.containsKey("timestamp")) {
            consumer.setConsumeTimestamp(UtilAll.timeMillisToHumanString3(with.getLongValue("timestamp")));
        }
        consumer.setPullBatchSize(with.getIntValue("pull_batch", 32));
        consumer.setConsumeMessageBatchMaxSize(with.getIntValue("consume_batch", 1));
        consumer.setConsumeThreadMin(with.getIntValue("threads", 4));
        consumer.setConsumeThreadMax(with.getIntValue("threads", 4));
        if (with.getBooleanValue("server_assigns")) {
            consumer.setClientRebalance(false);
        }
        consumer.setMaxReconsumeTimes(with.getIntValue("max_reconsume", -1));
        consumer.setConsumeTimeout(with.getLongValue("timeout_min", 15));
        consumer.setPopInvisibleTime(with.getIntValue("invisible_ms", 60000));
        if (with.containsKey("sql")) {
            consumer.subscribe(with.getString("topic"), MessageSelector.bySql(with.getString("sql")));
        } else {
            consumer.subscribe(with.getString("topic"), with.getString("expression"));
        }
        Push push = new Push(consumer);
        int failures = with.getIntValue("failures");
        if (with.getBooleanValue("orderly")) {
            consumer.setSuspendCurrentQueueTimeMillis(50);
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                push.received.addAll(messages);
                return messages.get(0).getReconsumeTimes() < failures
                    ? ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT : ConsumeOrderlyStatus.SUCCESS;
            });
        } else {
            boolean hangs = with.getBooleanValue("hangs");
            boolean waits = with.getBooleanValue("waits");
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                push.received.addAll(messages);
                if (hangs) {
                    awaitTheEnd();
                }
                if (waits) {
                    awaitGate(push);
                }
                return messages.get(0).getReconsumeTimes() < failures
                    ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
        }
        consumer.start();
        return started(push, consumer);
    }

    private static AllocateMessageQueueStrategy strategy(JSONObject with) {
        switch (with.getString("allocation")) {
            case "AVG": return new AllocateMessageQueueAveragely();
            case "AVG_BY_CIRCLE": return new AllocateMessageQueueAveragelyByCircle();
            case "CONSISTENT_HASH": return new AllocateMessageQueueConsistentHash();
            case "MACHINE_ROOM_NEARBY": return new AllocateMachineRoomNearby(new AllocateMessageQueueAveragely(), new AllocateMachineRoomNearby.MachineRoomResolver() {
                @Override
                public String brokerDeployIn(MessageQueue queue) {
                    return queue.getQueueId() % 2 == 0 ? "even" : "odd";
                }

                @Override
                public String consumerDeployIn(String clientId) {
                    return clientId.contains("even") ? "even" : "odd";
                }
            });
            case "CONFIG": {
                AllocateMessageQueueByConfig fixed = new AllocateMessageQueueByConfig();
                fixed.setMessageQueueList(new ArrayList<>(queues(with.getJSONArray("queues"))));
                return fixed;
            }
            default: throw new IllegalArgumentException(with.getString("allocation"));
        }
    }

    private static void awaitGate(Push push) {
        try {
            push.gate.await();
        } catch (InterruptedException stopped) {
            Thread.currentThread().interrupt();
        }
    }

    private static void awaitTheEnd() {
        try {
            Thread.sleep(Long.MAX_VALUE);
        } catch (InterruptedException stopped) {
            Thread.currentThread().interrupt();
        }
    }

    /** At least count messages if they come within the timeout, and whatever came besides. */
    private static Object pushTake(Push push, JSONObject with) throws Exception {
        JSONArray messages = new JSONArray();
        long deadline = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(with.getLongValue("timeout_ms"));
        while (messages.size() < with.getIntValue("count")) {
            MessageExt message = push.received.poll(Math.max(0, deadline - System.nanoTime()), TimeUnit.NANOSECONDS);
            if (message == null) {
                break;
            }
            messages.add(message(message));
        }
        List<MessageExt> rest = new ArrayList<>();
        push.received.drainTo(rest);
        rest.forEach(message -> messages.add(message(message)));
        return messages;
    }

    private static Object pushQueues(Push push, JSONObject with) {
        List<MessageQueue> own = new ArrayList<>();
        for (MessageQueue queue : push.consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().keySet()) {
            if (queue.getTopic().equals(with.getString("topic"))) {
                own.add(queue);
            }
        }
        return queues(own);
    }

    /** Of each queue of a topic that it has, by id: the offset that it will commit; -1 before the first message is consumed. */
    private static Object pushConsumed(Push push, JSONObject with) {
        JSONObject offsets = new JSONObject();
        for (MessageQueue queue : push.consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().keySet()) {
            if (queue.getTopic().equals(with.getString("topic"))) {
                offsets.put(String.valueOf(queue.getQueueId()), push.consumer.getOffsetStore().readOffset(queue, ReadOffsetType.READ_FROM_MEMORY));
            }
        }
        return offsets;
    }

    // ---- lite pull consumer

    private static Object liteStart(JSONObject with) throws Exception {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(with.getString("group"));
        configure(consumer, with);
        consumer.setAutoCommit(with.getBooleanValue("auto_commit"));
        consumer.setConsumeFromWhere(ConsumeFromWhere.valueOf(with.getString("from")));
        consumer.setPullBatchSize(with.getIntValue("pull_batch", 10));
        if (with.containsKey("sql")) {
            consumer.subscribe(with.getString("topic"), MessageSelector.bySql(with.getString("sql")));
        } else if (with.containsKey("expression")) {
            consumer.subscribe(with.getString("topic"), with.getString("expression"));
        }
        consumer.start();
        if (with.containsKey("queues")) {
            consumer.assign(queues(with.getJSONArray("queues")));
        }
        return started(consumer, consumer);
    }

    private static Object litePoll(DefaultLitePullConsumer consumer, JSONObject with) {
        JSONArray messages = new JSONArray();
        long deadline = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(with.getLongValue("timeout_ms"));
        do {
            consumer.poll(100).forEach(message -> messages.add(message(message)));
        } while (messages.size() < with.getIntValue("count") && System.nanoTime() < deadline);
        return messages;
    }

    private static Object liteDo(DefaultLitePullConsumer consumer, JSONObject with) throws Exception {
        MessageQueue queue = with.containsKey("queue") ? queue(with.getJSONArray("queue")) : null;
        switch (with.getString("verb")) {
            case "seek": consumer.seek(queue, with.getLongValue("offset")); return null;
            case "seek_to_begin": consumer.seekToBegin(queue); return null;
            case "seek_to_end": consumer.seekToEnd(queue); return null;
            case "commit": consumer.commit(); return null;
            case "committed": return consumer.committed(queue);
            case "pause": consumer.pause(List.of(queue)); return null;
            case "resume": consumer.resume(List.of(queue)); return null;
            case "offset_for_timestamp": return consumer.offsetForTimestamp(queue, with.getLongValue("timestamp"));
            case "queues": return queues(consumer.fetchMessageQueues(with.getString("topic")));
            case "assignment": return queues(consumer.assignment());
            default: throw new IllegalArgumentException(with.getString("verb"));
        }
    }

    // ---- pull consumer

    private static Object pullStart(JSONObject with) throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(with.getString("group"));
        configure(consumer, with);
        consumer.start();
        return started(consumer, consumer);
    }

    private static Object pull(DefaultMQPullConsumer consumer, JSONObject with) throws Exception {
        MessageQueue queue = queue(with.getJSONArray("queue"));
        String expression = with.getString("expression");
        long offset = with.getLongValue("offset");
        int max = with.getIntValue("max");
        PullResult result = with.containsKey("sql") ? consumer.pull(queue, MessageSelector.bySql(with.getString("sql")), offset, max)
            : with.getBooleanValue("block") ? consumer.pullBlockIfNotFound(queue, expression, offset, max)
            : consumer.pull(queue, expression, offset, max);
        JSONArray messages = new JSONArray();
        if (result.getMsgFoundList() != null) {
            result.getMsgFoundList().forEach(message -> messages.add(message(message)));
        }
        return JSONObject.of("status", result.getPullStatus().name(), "next", result.getNextBeginOffset(),
            "min", result.getMinOffset(), "max", result.getMaxOffset(), "messages", messages);
    }

    private static Object pullDo(DefaultMQPullConsumer consumer, JSONObject with) throws Exception {
        MessageQueue queue = with.containsKey("queue") ? queue(with.getJSONArray("queue")) : null;
        switch (with.getString("verb")) {
            case "queues": return queues(consumer.fetchSubscribeMessageQueues(with.getString("topic")));
            case "max_offset": return consumer.maxOffset(queue);
            case "min_offset": return consumer.minOffset(queue);
            case "search_offset": return consumer.searchOffset(queue, with.getLongValue("timestamp"));
            case "earliest_store_time": return consumer.earliestMsgStoreTime(queue);
            case "update_offset":
                consumer.updateConsumeOffset(queue, with.getLongValue("offset"));
                consumer.getDefaultMQPullConsumerImpl().getOffsetStore().persist(queue);
                return null;
            case "fetch_offset":
                return consumer.getDefaultMQPullConsumerImpl().getOffsetStore().readOffset(queue, ReadOffsetType.READ_FROM_STORE);
            case "view_message": return message(consumer.viewMessage(with.getString("topic"), with.getString("msg_id")));
            default: throw new IllegalArgumentException(with.getString("verb"));
        }
    }

    // ---- ordered pops, as the Proxy makes them of a producer's connections: no consumer does

    private static Object orderedPop(DefaultMQProducer producer, JSONObject with) throws Exception {
        PopMessageRequestHeader header = new PopMessageRequestHeader();
        header.setConsumerGroup(with.getString("group"));
        header.setTopic(with.getString("topic"));
        header.setQueueId(-1);
        header.setMaxMsgNums(with.getIntValue("max"));
        header.setInvisibleTime(with.getLongValue("invisible_ms"));
        header.setPollTime(0);
        header.setBornTime(System.currentTimeMillis());
        header.setInitMode(ConsumeInitMode.MIN);
        header.setExpType("TAG");
        header.setExp("*");
        header.setOrder(true);
        header.setAttemptId(with.getString("attempt"));
        CompletableFuture<PopResult> outcome = new CompletableFuture<>();
        api(producer).popMessageAsync(with.getString("broker_name"), with.getString("broker"), header, 10000, new PopCallback() {
            @Override
            public void onSuccess(PopResult result) {
                outcome.complete(result);
            }

            @Override
            public void onException(Throwable thrown) {
                outcome.completeExceptionally(thrown);
            }
        });
        JSONArray messages = new JSONArray();
        List<MessageExt> found = outcome.get(30, TimeUnit.SECONDS).getMsgFoundList();
        if (found != null) {
            found.forEach(message -> messages.add(message(message)));
        }
        return messages;
    }

    /** Acknowledges a message, or makes it visible again after some time; OK or NO_EXIST. */
    private static Object orderedDo(DefaultMQProducer producer, JSONObject with) throws Exception {
        CompletableFuture<AckResult> outcome = new CompletableFuture<>();
        AckCallback callback = new AckCallback() {
            @Override
            public void onSuccess(AckResult result) {
                outcome.complete(result);
            }

            @Override
            public void onException(Throwable thrown) {
                outcome.completeExceptionally(thrown);
            }
        };
        if (with.containsKey("invisible_ms")) {
            ChangeInvisibleTimeRequestHeader header = new ChangeInvisibleTimeRequestHeader();
            header.setConsumerGroup(with.getString("group"));
            header.setTopic(with.getString("topic"));
            header.setQueueId(with.getIntValue("queue_id"));
            header.setOffset(with.getLongValue("offset"));
            header.setExtraInfo(with.getString("receipt"));
            header.setInvisibleTime(with.getLongValue("invisible_ms"));
            api(producer).changeInvisibleTimeAsync(with.getString("broker_name"), with.getString("broker"), header, 10000, callback);
        } else {
            AckMessageRequestHeader header = new AckMessageRequestHeader();
            header.setConsumerGroup(with.getString("group"));
            header.setTopic(with.getString("topic"));
            header.setQueueId(with.getIntValue("queue_id"));
            header.setOffset(with.getLongValue("offset"));
            header.setExtraInfo(with.getString("receipt"));
            api(producer).ackMessageAsync(with.getString("broker"), 10000, callback, header);
        }
        return outcome.get(30, TimeUnit.SECONDS).getStatus().name();
    }

    private static MQClientAPIImpl api(DefaultMQProducer producer) {
        return producer.getDefaultMQProducerImpl().getMqClientFactory().getMQClientAPIImpl();
    }

    // ---- SQL92

    /** Of each [expression, properties]: true, false, null, "parse error" or "evaluation error". */
    private static Object sqlEvaluate(JSONArray cases) {
        JSONArray results = new JSONArray();
        for (int i = 0; i < cases.size(); i++) {
            JSONObject properties = cases.getJSONArray(i).getJSONObject(1);
            EvaluationContext context = new EvaluationContext() {
                @Override
                public Object get(String name) {
                    return properties.get(name);
                }

                @Override
                public Map<String, Object> keyValues() {
                    return properties;
                }
            };
            Expression expression;
            try {
                expression = SelectorParser.parse(cases.getJSONArray(i).getString(0));
            } catch (Exception invalid) {
                results.add("parse error");
                continue;
            }
            try {
                results.add(expression.evaluate(context));
            } catch (Exception failed) {
                results.add("evaluation error");
            }
        }
        return results;
    }

    // ---- mqadmin

    /** Where the calling thread prints to. */
    private static final class Console extends OutputStream {
        private final int index;
        private final OutputStream otherwise;

        Console(int index, OutputStream otherwise) {
            this.index = index;
            this.otherwise = otherwise;
        }

        private OutputStream target() {
            OutputStream[] streams = CONSOLE.get();
            return streams == null ? otherwise : streams[index];
        }

        @Override
        public void write(int character) throws IOException {
            target().write(character);
        }

        @Override
        public void write(byte[] bytes, int from, int length) throws IOException {
            target().write(bytes, from, length);
        }
    }

    /** The commands: some keep a producer or consumer that they shut down, so each run starts with new ones. */
    private static final class Tools extends MQAdminStartup {
        private static final long POLL_MS = 2;

        static synchronized List<String> names() {
            SUB_COMMANDS.clear();
            initCommand();
            return SUB_COMMANDS.stream().map(SubCommand::commandName).collect(Collectors.toList());
        }

        private static SubCommand command(String name) {
            SUB_COMMANDS.clear();
            initCommand();
            for (SubCommand command : SUB_COMMANDS) {
                if (command.commandName().equals(name)) {
                    return command;
                }
            }
            throw new IllegalArgumentException("mqadmin has no command " + name);
        }

        /**
         * Starts a command; returns once its client has its name, and no other can get the same: the name is the
         * millisecond in which the command made it. Two commands of one name would share a client and end it twice.
         */
        static synchronized Thread start(String name, Consumer<SubCommand> run) throws Exception {
            SubCommand command = command(name);
            Set<String> before = clients();
            Thread thread = new Thread(() -> run.accept(command), "mqadmin");
            thread.setDaemon(true);
            thread.start();
            while (thread.isAlive() && before.containsAll(clients())) {
                Thread.sleep(POLL_MS);
            }
            Thread.sleep(POLL_MS);
            return thread;
        }

        /** The names of all clients of this JVM. */
        private static Set<String> clients() throws ReflectiveOperationException {
            Field table = MQClientManager.class.getDeclaredField("factoryTable");
            table.setAccessible(true);
            return new HashSet<>(((Map<String, ?>) table.get(MQClientManager.getInstance())).keySet());
        }
    }

    /** One mqadmin command line; what it printed to both streams. {@code for_ms}: a command that never ends is interrupted then. */
    private static Object mqadmin(JSONObject with) throws Exception {
        String[] words = with.getJSONArray("arguments").toArray(new String[0]);
        ByteArrayOutputStream printed = new ByteArrayOutputStream();
        ByteArrayOutputStream complained = new ByteArrayOutputStream();
        Thread thread = Tools.start(words[0], command -> {
            CONSOLE.set(new OutputStream[] {printed, complained});
            try {
                Options options = command.buildCommandlineOptions(ServerUtil.buildCommandlineOptions(new Options()));
                CommandLine line = new DefaultParser().parse(options, Arrays.copyOfRange(words, 1, words.length));
                if (line.hasOption('n')) {
                    System.setProperty(MixAll.NAMESRV_ADDR_PROPERTY, line.getOptionValue('n'));
                }
                command.execute(line, options, signing(with));
            } catch (Exception thrown) {
                thrown.printStackTrace();
            }
        });
        thread.join(with.getLongValue("for_ms"));
        while (thread.isAlive()) {
            thread.interrupt(); // once is not enough: a send that it ends counts as one that failed, and the next begins
            thread.join(100);
        }
        return JSONObject.of("out", printed.toString(StandardCharsets.UTF_8), "err", complained.toString(StandardCharsets.UTF_8));
    }

    // ---- JSON forms

    private static List<Object> queue(MessageQueue queue) {
        return Arrays.asList(queue.getTopic(), queue.getBrokerName(), queue.getQueueId());
    }

    private static MessageQueue queue(JSONArray json) {
        return new MessageQueue(json.getString(0), json.getString(1), json.getIntValue(2));
    }

    private static JSONArray queues(Collection<MessageQueue> queues) {
        JSONArray array = new JSONArray();
        queues.stream().sorted().forEach(queue -> array.add(queue(queue)));
        return array;
    }

    private static Set<MessageQueue> queues(JSONArray array) {
        Set<MessageQueue> queues = new java.util.HashSet<>();
        for (int i = 0; i < array.size(); i++) {
            queues.add(queue(array.getJSONArray(i)));
        }
        return queues;
    }

    private static JSONObject message(MessageExt message) {
        JSONObject json = new JSONObject();
        json.put("topic", message.getTopic());
        json.put("broker", message.getBrokerName());
        json.put("queue_id", message.getQueueId());
        json.put("queue_offset", message.getQueueOffset());
        json.put("physical_offset", message.getCommitLogOffset());
        json.put("store_size", message.getStoreSize());
        json.put("sys_flag", message.getSysFlag());
        json.put("flag", message.getFlag());
        json.put("born_timestamp", message.getBornTimestamp());
        json.put("store_timestamp", message.getStoreTimestamp());
        json.put("born_host", message.getBornHostString());
        json.put("store_host", message.getStoreHost() == null ? null : String.valueOf(message.getStoreHost()));
        json.put("msg_id", message.getMsgId());
        json.put("body_crc", message.getBodyCRC());
        json.put("reconsume_times", message.getReconsumeTimes());
        json.put("tags", message.getTags());
        json.put("keys", message.getKeys());
        json.put("properties", message.getProperties());
        json.put("body", Base64.getEncoder().encodeToString(message.getBody()));
        return json;
    }
}
