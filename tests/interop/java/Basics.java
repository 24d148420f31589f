import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.Consumer;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * What every RocketMQ application does, once through, with a client of any version: {@code Basics namesrv suffix}.
 *
 * <p>Topics named below with the suffix must exist. Each thing that happened is one line of tab-separated fields on
 * stdout, free text in Base64; the last line is {@code done}. Written against what the clients 4.9 and 5.x have in common.
 */
public final class Basics {
    private static final List<String> LINES = Collections.synchronizedList(new ArrayList<>());
    private static final long WAIT_S = 60;
    private static final AtomicInteger INSTANCES = new AtomicInteger();
    private static String namesrv;
    private static String suffix;
    private static DefaultMQProducer producer;

    private Basics() {
    }

    public static void main(String[] arguments) throws Exception {
        namesrv = arguments[0];
        suffix = arguments[1];
        producer = configured(new DefaultMQProducer("basics-producer-" + suffix));
        producer.setSendMsgTimeout(30_000);
        producer.start();
        List<Runnable> scenarios = new ArrayList<>();
        for (Scenario each : List.<Scenario>of(Basics::sends, Basics::order, Basics::filters, Basics::delays, Basics::transactions, Basics::broadcast, Basics::retries)) {
            scenarios.add(() -> {
                try {
                    each.run();
                } catch (Throwable thrown) {
                    thrown.printStackTrace();
                    line("failed", String.valueOf(thrown));
                }
            });
        }
        var workers = Executors.newFixedThreadPool(scenarios.size());
        for (Runnable each : scenarios) {
            workers.execute(each);
        }
        workers.shutdown();
        if (!workers.awaitTermination(2 * WAIT_S, TimeUnit.SECONDS)) {
            line("failed", "not within the time");
        }
        LINES.forEach(System.out::println);
        System.out.println("done");
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }

    private interface Scenario {
        void run() throws Exception;
    }

    private static void line(Object... fields) {
        List<String> texts = new ArrayList<>();
        for (Object field : fields) {
            texts.add(field instanceof byte[] ? Base64.getEncoder().encodeToString((byte[]) field) : String.valueOf(field));
        }
        LINES.add(String.join("\t", texts));
    }

    private static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    private static String name(String stem) {
        return stem + "-" + suffix;
    }

    private static <T extends ClientConfig> T configured(T client) {
        client.setNamesrvAddr(namesrv);
        client.setInstanceName("basics" + INSTANCES.incrementAndGet());
        client.setPollNameServerInterval(1000);
        client.setHeartbeatBrokerInterval(1000);
        return client;
    }

    private static Message message(String topic, String tags, String keys, String body) {
        Message message = new Message(name(topic), tags, keys, bytes(body));
        message.putUserProperty("größe", "ü" + body);
        return message;
    }

    private static void sent(String how, SendResult result) {
        line("sent", how, result.getSendStatus(), result.getMessageQueue().getQueueId(), result.getQueueOffset(), result.getMsgId(), result.getOffsetMsgId());
    }

    private static DefaultMQPushConsumer push(String scenario, String topic) throws Exception {
        DefaultMQPushConsumer consumer = configured(new DefaultMQPushConsumer(name("basics-" + scenario)));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        if (topic != null) {
            consumer.subscribe(name(topic), "*");
        }
        return consumer;
    }

    /** Starts a consumer that notes what it gets; the latch opens after so many messages. */
    private static CountDownLatch listen(DefaultMQPushConsumer consumer, String scenario, int count, Consumer<MessageExt> also) throws Exception {
        CountDownLatch latch = new CountDownLatch(count);
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt one : messages) {
                received(scenario, one);
                also.accept(one);
                latch.countDown();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        return latch;
    }

    private static void received(String scenario, MessageExt one) {
        line("received", scenario, one.getQueueId(), one.getQueueOffset(), one.getBody(), one.getTags(), one.getKeys(), one.getReconsumeTimes(),
            bytes(String.valueOf(one.getUserProperty("größe"))), one.getMsgId());
    }

    private static void await(CountDownLatch latch, String what) throws Exception {
        if (!latch.await(WAIT_S, TimeUnit.SECONDS)) {
            line("failed", what + ": " + latch.getCount() + " are missing");
        }
    }

    private static void sends() throws Exception {
        for (int i = 0; i < 5; i++) {
            sent("sync", producer.send(message("Sends", "S", "key-" + i, "sync-" + i)));
        }
        CountDownLatch callbacks = new CountDownLatch(5);
        for (int i = 0; i < 5; i++) {
            producer.send(message("Sends", "S", "k", "async-" + i), new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    sent("async", result);
                    callbacks.countDown();
                }

                @Override
                public void onException(Throwable thrown) {
                    line("failed", "async: " + thrown);
                }
            });
        }
        await(callbacks, "callbacks");
        for (int i = 0; i < 5; i++) {
            producer.sendOneway(message("Sends", "S", "k", "oneway-" + i));
        }
        List<Message> batch = new ArrayList<>();
        for (int i = 0; i < 10; i++) {
            batch.add(message("Sends", "S", "k", "batch-" + i));
        }
        sent("batch", producer.send(batch));
        await(listen(push("concurrent", "Sends"), "concurrent", 25, one -> { }), "concurrent");

        DefaultLitePullConsumer lite = configured(new DefaultLitePullConsumer(name("basics-lite")));
        lite.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        lite.subscribe(name("Sends"), "*");
        lite.start();
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(WAIT_S);
        for (int count = 0; count < 25 && System.nanoTime() < deadline; ) {
            for (MessageExt one : lite.poll(500)) {
                received("lite", one);
                count++;
            }
        }
        lite.shutdown();

        DefaultMQPullConsumer pull = configured(new DefaultMQPullConsumer(name("basics-pull")));
        pull.start();
        for (MessageQueue queue : pull.fetchSubscribeMessageQueues(name("Sends"))) {
            long offset = pull.minOffset(queue);
            while (offset < pull.maxOffset(queue)) {
                PullResult result = pull.pull(queue, "*", offset, 4);
                if (result.getPullStatus() == PullStatus.FOUND) {
                    result.getMsgFoundList().forEach(one -> received("pull", one));
                }
                offset = result.getNextBeginOffset();
            }
            pull.updateConsumeOffset(queue, offset);
            pull.getDefaultMQPullConsumerImpl().getOffsetStore().persist(queue);
            // Committed one way, and newer clients write that from another thread than the question.
            while (pull.fetchConsumeOffset(queue, true) != offset && System.nanoTime() < deadline) {
                Thread.sleep(50);
            }
            line("offset", queue.getQueueId(), pull.fetchConsumeOffset(queue, true), pull.searchOffset(queue, 0));
        }
        pull.shutdown();
    }

    private static void order() throws Exception {
        for (int i = 0; i < 20; i++) {
            String key = "order-" + i % 4;
            producer.send(message("Order", "O", key, String.valueOf(i)), (queues, ignored, chosen) -> queues.get(Math.abs(chosen.hashCode() % queues.size())), key);
        }
        DefaultMQPushConsumer consumer = push("orderly", "Order");
        CountDownLatch latch = new CountDownLatch(20);
        Set<String> failedOnce = ConcurrentHashMap.newKeySet();
        consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            MessageExt one = messages.get(0);
            if (new String(one.getBody(), StandardCharsets.UTF_8).equals("7") && failedOnce.add("7")) {
                context.setSuspendCurrentQueueTimeMillis(100);
                return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
            }
            received("orderly", one);
            latch.countDown();
            return ConsumeOrderlyStatus.SUCCESS;
        });
        consumer.start();
        await(latch, "orderly");
    }

    private static void filters() throws Exception {
        for (int i = 0; i < 12; i++) {
            Message message = message("Filters", new String[] {"A", "B", "C"}[i % 3], "k", String.valueOf(i));
            message.putUserProperty("n", String.valueOf(i));
            producer.send(message);
        }
        DefaultMQPushConsumer tags = push("tags", null);
        tags.subscribe(name("Filters"), "A || B");
        CountDownLatch byTags = listen(tags, "tags", 8, one -> { });
        DefaultMQPushConsumer sql = push("sql", null);
        sql.subscribe(name("Filters"), MessageSelector.bySql("n BETWEEN 3 AND 9 AND TAGS <> 'B'"));
        await(listen(sql, "sql", 5, one -> { }), "sql");
        await(byTags, "tags");
    }

    private static void delays() throws Exception {
        CountDownLatch latch = listen(push("delays", "Delays"), "delays", 2,
            one -> line("delay", one.getBody(), one.getStoreTimestamp() - one.getBornTimestamp()));
        for (int level = 1; level <= 2; level++) {
            Message message = message("Delays", "D", "k", "level-" + level);
            message.setDelayTimeLevel(level);
            sent("delay", producer.send(message));
        }
        await(latch, "delays");
    }

    private static void transactions() throws Exception {
        TransactionMQProducer transactions = configured(new TransactionMQProducer(name("basics-transactions")));
        transactions.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
                return (LocalTransactionState) argument;
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                String body = new String(message.getBody(), StandardCharsets.UTF_8);
                line("checked", message.getBody());
                return body.equals("late-commit") ? LocalTransactionState.COMMIT_MESSAGE : LocalTransactionState.ROLLBACK_MESSAGE;
            }
        });
        transactions.setSendMsgTimeout(30_000);
        transactions.start();
        CountDownLatch latch = listen(push("transactions", "Transactions"), "transactions", 2, one -> { });
        for (Map.Entry<String, LocalTransactionState> each : Map.of("commit", LocalTransactionState.COMMIT_MESSAGE, "rollback", LocalTransactionState.ROLLBACK_MESSAGE,
            "late-commit", LocalTransactionState.UNKNOW, "late-rollback", LocalTransactionState.UNKNOW).entrySet()) {
            sent(each.getKey(), transactions.sendMessageInTransaction(message("Transactions", "X", "k", each.getKey()), each.getValue()));
        }
        await(latch, "transactions");
    }

    private static void broadcast() throws Exception {
        CountDownLatch[] latches = new CountDownLatch[2];
        for (int i = 0; i < 2; i++) {
            DefaultMQPushConsumer consumer = push("broadcast", "Broadcast");
            // Its enum moved to another package between the versions.
            for (Method method : DefaultMQPushConsumer.class.getMethods()) {
                if (method.getName().equals("setMessageModel")) {
                    for (Object constant : method.getParameterTypes()[0].getEnumConstants()) {
                        if (constant.toString().equals("BROADCASTING")) {
                            method.invoke(consumer, constant);
                        }
                    }
                }
            }
            latches[i] = listen(consumer, "broadcast-" + i, 10, one -> { });
        }
        for (int i = 0; i < 10; i++) {
            producer.send(message("Broadcast", "B", "k", String.valueOf(i)));
        }
        for (CountDownLatch each : latches) {
            await(each, "broadcast");
        }
    }

    private static void retries() throws Exception {
        DefaultMQPushConsumer consumer = push("retries", "Retries");
        consumer.setMaxReconsumeTimes(2);
        CountDownLatch latch = new CountDownLatch(5);
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            MessageExt one = messages.get(0);
            received("retries", one);
            latch.countDown();
            context.setDelayLevelWhenNextConsume(1);
            boolean dead = new String(one.getBody(), StandardCharsets.UTF_8).equals("never");
            return dead || one.getReconsumeTimes() == 0 ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        producer.send(message("Retries", "R", "k", "second-time"));
        producer.send(message("Retries", "R", "k", "never"));
        await(latch, "retries");
        DefaultMQPushConsumer dead = configured(new DefaultMQPushConsumer(name("basics-dead")));
        dead.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        dead.subscribe("%DLQ%" + name("basics-retries"), "*");
        await(listen(dead, "dead", 1, one -> { }), "dead letters");
    }
}
