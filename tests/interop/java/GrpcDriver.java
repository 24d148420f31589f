import com.alibaba.fastjson2.JSON;
import com.alibaba.fastjson2.JSONArray;
import com.alibaba.fastjson2.JSONObject;
import com.alibaba.fastjson2.JSONWriter;
import java.io.BufferedReader;
import java.io.Closeable;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientException;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.FilterExpressionType;
import org.apache.rocketmq.client.apis.consumer.LitePushConsumer;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.ProducerBuilder;
import org.apache.rocketmq.client.apis.producer.SendReceipt;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;

/**
 * The unmodified gRPC client of RocketMQ, driven from a test: one JSON request a line on stdin, one JSON reply a line
 * on stdout, in the form that Driver.java has.
 */
public final class GrpcDriver {
    private static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();
    private static final Map<Integer, Object> OBJECTS = new ConcurrentHashMap<>();
    private static final AtomicInteger HANDLES = new AtomicInteger();
    private static final PrintStream REPLIES = System.out;
    private static final ExecutorService WORKERS = Executors.newCachedThreadPool(task -> {
        Thread thread = new Thread(task, "driver");
        thread.setDaemon(true);
        return thread;
    });

    private GrpcDriver() {
    }

    /** A push consumer and what its listener was given, in the order of delivery. */
    private static final class Push {
        Closeable consumer;
        final BlockingQueue<MessageView> received = new LinkedBlockingQueue<>();
        /** How often each message failed so far. */
        final Map<String, Integer> failed = new ConcurrentHashMap<>();
    }

    /** A producer of transactions, and the bodies that the proxy asked it about. */
    private static final class Sender {
        Producer producer;
        final List<String> checked = new ArrayList<>();
    }

    public static void main(String[] arguments) throws IOException {
        System.setOut(System.err);
        BufferedReader requests = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        reply(JSONObject.of("id", 0L, "result", "ready"));
        for (String line = requests.readLine(); line != null; line = requests.readLine()) {
            JSONObject request = JSON.parseObject(line);
            WORKERS.execute(() -> serve(request));
        }
        // stdin closed: the test session is over, or died. No orderly shutdown, so that nothing can hang here.
        Runtime.getRuntime().halt(0);
    }

    private static void serve(JSONObject request) {
        JSONObject reply = JSONObject.of("id", request.getLongValue("id"));
        try {
            reply.put("result", perform(request.getString("do"), request.getJSONObject("with")));
        } catch (Throwable thrown) {
            reply.put("error", JSONObject.of("type", thrown.getClass().getSimpleName(), "code", -1, "text", String.valueOf(thrown.getMessage())));
        }
        reply(reply);
    }

    private static synchronized void reply(JSONObject reply) {
        byte[] bytes = JSON.toJSONBytes(reply, JSONWriter.Feature.WriteNulls);
        REPLIES.write(bytes, 0, bytes.length);
        REPLIES.write('\n');
        REPLIES.flush();
    }

    private static Object perform(String verb, JSONObject with) throws Exception {
        switch (verb) {
            case "producer.start": return producerStart(with);
            case "producer.send": return send(object(with), with);
            case "producer.flood": return flood(((Sender) object(with)).producer, with);
            case "producer.recall":
                return ((Sender) object(with)).producer.recallMessage(with.getString("topic"), with.getString("recall_handle")).getMessageId().toString();
            case "producer.transact": return transact(object(with), with);
            case "producer.checked": {
                Sender sender = object(with);
                synchronized (sender.checked) {
                    return new JSONArray(sender.checked);
                }
            }
            case "simple.start": return JSONObject.of("handle", keep(simpleStart(with)));
            case "simple.receive": return receive(object(with), with);
            case "simple.drain": return drain(object(with), with);
            case "simple.ack":
                ((SimpleConsumer) object(with)).ack((MessageView) kept(with.getIntValue("view")));
                if (with.getBooleanValue("last")) {
                    OBJECTS.remove(with.getIntValue("view"));
                }
                return null;
            case "simple.change":
                ((SimpleConsumer) object(with)).changeInvisibleDuration((MessageView) kept(with.getIntValue("view")), Duration.ofMillis(with.getLongValue("invisible_ms")));
                return null;
            case "push.start": return pushStart(with);
            case "lite.start": return liteStart(with);
            case "lite.subscribe": ((LitePushConsumer) ((Push) object(with)).consumer).subscribeLite(with.getString("topic")); return null;
            case "lite.unsubscribe": ((LitePushConsumer) ((Push) object(with)).consumer).unsubscribeLite(with.getString("topic")); return null;
            case "lite.topics": return new JSONArray(((LitePushConsumer) ((Push) object(with)).consumer).getLiteTopicSet());
            case "push.take": return pushTake(object(with), with);
            case "stop": {
                Object stopped = OBJECTS.remove(with.getIntValue("handle"));
                Closeable client = stopped instanceof Sender ? ((Sender) stopped).producer : stopped instanceof Push ? ((Push) stopped).consumer : (Closeable) stopped;
                client.close();
                return null;
            }
            default: throw new IllegalArgumentException("no such request: " + verb);
        }
    }

    private static Object kept(int handle) {
        Object found = OBJECTS.get(handle);
        if (found == null) {
            throw new IllegalStateException("no object has handle " + handle);
        }
        return found;
    }

    @SuppressWarnings("unchecked")
    private static <T> T object(JSONObject with) {
        return (T) kept(with.getIntValue("handle"));
    }

    private static int keep(Object object) {
        int handle = HANDLES.incrementAndGet();
        OBJECTS.put(handle, object);
        return handle;
    }

    private static ClientConfiguration configuration(JSONObject with) {
        return ClientConfiguration.newBuilder()
            .setEndpoints(with.getString("endpoints"))
            .enableSsl(with.getBooleanValue("tls"))
            .setRequestTimeout(Duration.ofSeconds(30))
            .build();
    }

    /** Topic -> [TAG or SQL92, expression]. */
    private static Map<String, FilterExpression> subscriptions(JSONObject with) {
        JSONObject json = with.getJSONObject("subscriptions");
        Map<String, FilterExpression> subscriptions = new HashMap<>();
        for (String topic : json.keySet()) {
            JSONArray filter = json.getJSONArray(topic);
            subscriptions.put(topic, new FilterExpression(filter.getString(1), FilterExpressionType.valueOf(filter.getString(0))));
        }
        return subscriptions;
    }

    // ---- producer

    private static Object producerStart(JSONObject with) throws Exception {
        Sender sender = new Sender();
        ProducerBuilder builder = PROVIDER.newProducerBuilder()
            .setClientConfiguration(configuration(with))
            .setTopics(with.getJSONArray("topics").toArray(new String[0]));
        if (with.containsKey("attempts")) {
            builder.setMaxAttempts(with.getIntValue("attempts"));
        }
        if (with.containsKey("checker")) {
            TransactionResolution resolution = TransactionResolution.valueOf(with.getString("checker"));
            builder.setTransactionChecker(view -> {
                synchronized (sender.checked) {
                    sender.checked.add(body(view));
                }
                return resolution;
            });
        }
        sender.producer = builder.build();
        return JSONObject.of("handle", keep(sender));
    }

    private static Message message(JSONObject json) {
        MessageBuilder builder = PROVIDER.newMessageBuilder()
            .setTopic(json.getString("topic"))
            .setBody(Base64.getDecoder().decode(json.getString("body")));
        if (json.containsKey("tag")) {
            builder.setTag(json.getString("tag"));
        }
        if (json.containsKey("keys")) {
            builder.setKeys(json.getJSONArray("keys").toArray(new String[0]));
        }
        if (json.containsKey("group")) {
            builder.setMessageGroup(json.getString("group"));
        }
        if (json.containsKey("priority")) {
            builder.setPriority(json.getIntValue("priority"));
        }
        if (json.containsKey("lite_topic")) {
            builder.setLiteTopic(json.getString("lite_topic"));
        }
        if (json.containsKey("delay_ms")) {
            builder.setDeliveryTimestamp(System.currentTimeMillis() + json.getLongValue("delay_ms"));
        }
        if (json.containsKey("properties")) {
            json.getJSONObject("properties").forEach((key, value) -> builder.addProperty(key, String.valueOf(value)));
        }
        return builder.build();
    }

    /** One message after the other, or all at once with {@code together}. */
    private static Object send(Sender sender, JSONObject with) throws Exception {
        JSONArray messages = with.getJSONArray("messages");
        JSONArray receipts = new JSONArray();
        List<CompletableFuture<SendReceipt>> under_way = new ArrayList<>();
        for (int i = 0; i < messages.size(); i++) {
            Message message = message(messages.getJSONObject(i));
            if (with.getBooleanValue("together")) {
                under_way.add(sender.producer.sendAsync(message));
            } else {
                receipts.add(receipt(sender.producer.send(message)));
            }
        }
        for (CompletableFuture<SendReceipt> sending : under_way) {
            receipts.add(receipt(sending.get()));
        }
        return receipts;
    }

    /** The same message so many times, {@code at_once} of them under way. */
    private static Object flood(Producer producer, JSONObject with) throws Exception {
        Message message = message(with.getJSONObject("message"));
        int atOnce = with.getIntValue("at_once");
        Semaphore places = new Semaphore(atOnce);
        AtomicInteger failed = new AtomicInteger();
        long began = System.nanoTime();
        for (int i = 0; i < with.getIntValue("count"); i++) {
            places.acquire();
            producer.sendAsync(message).whenComplete((receipt, error) -> {
                if (error != null) {
                    failed.incrementAndGet();
                }
                places.release();
            });
        }
        places.acquire(atOnce);
        return JSONObject.of("seconds", (System.nanoTime() - began) / 1e9, "failed", failed.get());
    }

    private static JSONObject receipt(SendReceipt receipt) {
        return JSONObject.of("id", receipt.getMessageId().toString(), "recall_handle", receipt.getRecallHandle());
    }

    /** A message in a transaction that ends with commit, rollback or, for now, not at all. */
    private static Object transact(Sender sender, JSONObject with) throws Exception {
        Transaction transaction = sender.producer.beginTransaction();
        SendReceipt receipt = sender.producer.send(message(with.getJSONObject("message")), transaction);
        switch (with.getString("end")) {
            case "commit": transaction.commit(); break;
            case "rollback": transaction.rollback(); break;
            default: break;
        }
        return receipt(receipt);
    }

    // ---- consumers

    private static SimpleConsumer simpleStart(JSONObject with) throws Exception {
        return PROVIDER.newSimpleConsumerBuilder()
            .setClientConfiguration(configuration(with))
            .setConsumerGroup(with.getString("group"))
            .setAwaitDuration(Duration.ofMillis(with.getLongValue("await_ms")))
            .setSubscriptionExpressions(subscriptions(with))
            .build();
    }

    private static Object receive(SimpleConsumer consumer, JSONObject with) throws Exception {
        JSONArray received = new JSONArray();
        for (MessageView view : consumer.receive(with.getIntValue("max"), Duration.ofMillis(with.getLongValue("invisible_ms")))) {
            JSONObject json = view(view);
            json.put("view", keep(view));
            received.add(json);
        }
        return received;
    }

    /** Receive and acknowledge so many messages, {@code at_once} receipts under way. The time ends with the last ack. */
    private static Object drain(SimpleConsumer consumer, JSONObject with) throws Exception {
        int count = with.getIntValue("count");
        Duration invisible = Duration.ofMillis(with.getLongValue("invisible_ms"));
        AtomicInteger acknowledged = new AtomicInteger();
        AtomicLong bytes = new AtomicLong();
        AtomicLong ended = new AtomicLong();
        List<CompletableFuture<Void>> receivers = new ArrayList<>();
        long began = System.nanoTime();
        for (int i = 0; i < with.getIntValue("at_once"); i++) {
            receivers.add(CompletableFuture.runAsync(() -> {
                while (acknowledged.get() < count) {
                    List<CompletableFuture<Void>> acks = new ArrayList<>();
                    try {
                        for (MessageView view : consumer.receive(with.getIntValue("max"), invisible)) {
                            bytes.addAndGet(view.getBody().remaining());
                            acks.add(consumer.ackAsync(view));
                        }
                    } catch (ClientException error) {
                        throw new IllegalStateException(error);
                    }
                    acks.forEach(CompletableFuture::join);
                    if (!acks.isEmpty()) {
                        acknowledged.addAndGet(acks.size());
                        ended.accumulateAndGet(System.nanoTime(), Math::max);
                    }
                }
            }, WORKERS));
        }
        for (CompletableFuture<Void> receiver : receivers) {
            receiver.get();
        }
        return JSONObject.of("seconds", (ended.get() - began) / 1e9, "count", acknowledged.get(), "bytes", bytes.get());
    }

    private static Object pushStart(JSONObject with) throws Exception {
        Push push = new Push();
        int failures = with.getIntValue("failures");
        push.consumer = PROVIDER.newPushConsumerBuilder()
            .setClientConfiguration(configuration(with))
            .setConsumerGroup(with.getString("group"))
            .setSubscriptionExpressions(subscriptions(with))
            .setMessageListener(view -> {
                push.received.add(view);
                boolean fails = push.failed.merge(view.getMessageId().toString(), 1, Integer::sum) <= failures;
                return fails ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
            })
            .build();
        return JSONObject.of("handle", keep(push));
    }

    private static Object liteStart(JSONObject with) throws Exception {
        Push push = new Push();
        push.consumer = PROVIDER.newLitePushConsumerBuilder()
            .setClientConfiguration(configuration(with))
            .setConsumerGroup(with.getString("group"))
            .bindTopic(with.getString("topic"))
            .setMessageListener(view -> {
                push.received.add(view);
                return ConsumeResult.SUCCESS;
            })
            .build();
        return JSONObject.of("handle", keep(push));
    }

    /** So many messages, or what has come when the time is over. */
    private static Object pushTake(Push push, JSONObject with) throws InterruptedException {
        JSONArray taken = new JSONArray();
        long deadline = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(with.getLongValue("timeout_ms"));
        while (taken.size() < with.getIntValue("count")) {
            MessageView view = push.received.poll(deadline - System.nanoTime(), TimeUnit.NANOSECONDS);
            if (view == null) {
                break;
            }
            taken.add(view(view));
        }
        return taken;
    }

    private static String body(MessageView view) {
        ByteBuffer body = view.getBody();
        byte[] bytes = new byte[body.remaining()];
        body.get(bytes);
        return Base64.getEncoder().encodeToString(bytes);
    }

    private static JSONObject view(MessageView view) {
        JSONObject json = new JSONObject();
        json.put("id", view.getMessageId().toString());
        json.put("topic", view.getTopic());
        json.put("body", body(view));
        json.put("tag", view.getTag().orElse(null));
        json.put("keys", new JSONArray(view.getKeys()));
        json.put("group", view.getMessageGroup().orElse(null));
        json.put("delivery_timestamp", view.getDeliveryTimestamp().orElse(null));
        json.put("properties", view.getProperties());
        json.put("born_host", view.getBornHost());
        json.put("born_timestamp", view.getBornTimestamp());
        json.put("attempt", view.getDeliveryAttempt());
        return json;
    }
}
