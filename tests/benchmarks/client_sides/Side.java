import java.lang.management.ManagementFactory;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicIntegerArray;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicReference;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** The Java client as one side of the client benchmark; see side.py for the arguments and what is printed. */
public final class Side {
    private static final int BATCH = 32;
    private static final int WARM_UP = 30_000;
    private static final int DIGITS = 8;

    private static String namesrv;
    private static int size;
    private static int width;

    interface Work {
        void run(int from, int to) throws Exception;
    }

    /** Which numbers arrived. */
    private static final class Seen {
        final AtomicIntegerArray times;
        final AtomicInteger left;
        final AtomicLong first = new AtomicLong();
        final CountDownLatch finished = new CountDownLatch(1);

        Seen(int count) {
            times = new AtomicIntegerArray(count);
            left = new AtomicInteger(count);
        }

        void mark(byte[] body) {
            if (first.get() == 0) {
                first.compareAndSet(0, System.nanoTime());
            }
            if (times.incrementAndGet(number(body)) == 1 && left.decrementAndGet() == 0) {
                finished.countDown();
            }
        }

        int doubled() {
            int sum = 0;
            for (int index = 0; index < times.length(); index++) {
                sum += times.get(index);
            }
            return sum - times.length();
        }
    }

    private static int number(byte[] body) {
        return Integer.parseInt(new String(body, 0, DIGITS, StandardCharsets.US_ASCII));
    }

    private static byte[] body(int number) {
        byte[] made = new byte[size];
        Arrays.fill(made, (byte) 'x');
        String digits = String.format("%0" + DIGITS + "d", number);
        System.arraycopy(digits.getBytes(StandardCharsets.US_ASCII), 0, made, 0, DIGITS);
        return made;
    }

    private static String group() {
        return "java-" + System.nanoTime();
    }

    private static double cpuSeconds() {
        return ((com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean())
            .getProcessCpuTime() / 1e9;
    }

    private static void report(double seconds, double cpu, String more) {
        System.out.println(String.format(Locale.ROOT, "{\"seconds\":%f,\"cpu_s\":%f%s}", seconds, cpu, more));
    }

    private static void inThreads(int count, int step, Work work) throws Exception {
        AtomicInteger next = new AtomicInteger();
        AtomicReference<Exception> failure = new AtomicReference<>();
        List<Thread> threads = new ArrayList<>();
        for (int each = 0; each < width; each++) {
            Thread thread = new Thread(() -> {
                try {
                    for (int from = next.getAndAdd(step); from < count; from = next.getAndAdd(step)) {
                        work.run(from, Math.min(from + step, count));
                    }
                } catch (Exception error) {
                    failure.set(error);
                }
            });
            thread.start();
            threads.add(thread);
        }
        for (Thread thread : threads) {
            thread.join();
        }
        if (failure.get() != null) {
            throw failure.get();
        }
    }

    private static void send(DefaultMQProducer producer, String what, String topic, int count) throws Exception {
        switch (what) {
            case "sync":
                inThreads(count, 1, (from, to) -> producer.send(new Message(topic, body(from))));
                break;
            case "batch":
                inThreads(count, BATCH, (from, to) -> {
                    List<Message> batch = new ArrayList<>();
                    for (int number = from; number < to; number++) {
                        batch.add(new Message(topic, body(number)));
                    }
                    producer.send(batch);
                });
                break;
            case "oneway":
                for (int number = 0; number < count; number++) {
                    producer.sendOneway(new Message(topic, body(number)));
                }
                break;
            case "async":
            case "autobatch":
                Semaphore room = new Semaphore(width);
                AtomicReference<Throwable> failure = new AtomicReference<>();
                SendCallback callback = new SendCallback() {
                    @Override
                    public void onSuccess(SendResult result) {
                        room.release();
                    }

                    @Override
                    public void onException(Throwable error) {
                        failure.set(error);
                        room.release();
                    }
                };
                for (int number = 0; number < count; number++) {
                    room.acquire();
                    producer.send(new Message(topic, body(number)), callback);
                }
                room.acquire(width);
                if (failure.get() != null) {
                    throw new Exception(failure.get());
                }
                break;
            default:
                throw new IllegalArgumentException(what);
        }
    }

    private static DefaultMQPushConsumer push(String topic, MessageListenerConcurrently listener) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group());
        consumer.setNamesrvAddr(namesrv);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener(listener);
        consumer.start();
        return consumer;
    }

    private static void drain(String what, String topic, int count) throws Exception {
        Seen seen = new Seen(count);
        double cpu = cpuSeconds();
        if (what.equals("push")) {
            push(topic, (messages, context) -> {
                for (MessageExt message : messages) {
                    seen.mark(message.getBody());
                }
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
            if (!seen.finished.await(300, TimeUnit.SECONDS)) {
                throw new Exception(seen.left.get() + " of " + count + " messages did not arrive");
            }
        } else {
            DefaultLitePullConsumer lite = new DefaultLitePullConsumer(group());
            lite.setNamesrvAddr(namesrv);
            lite.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
            lite.start();
            lite.assign(lite.fetchMessageQueues(topic));
            while (seen.left.get() > 0) {
                for (MessageExt message : lite.poll()) {
                    seen.mark(message.getBody());
                }
            }
        }
        double seconds = (System.nanoTime() - seen.first.get()) / 1e9;
        report(seconds, cpuSeconds() - cpu, ",\"doubled\":" + seen.doubled());
    }

    private static String quantiles(long[] nanos) {
        Arrays.sort(nanos);
        return String.format(Locale.ROOT, "{\"p50\":%f,\"p99\":%f,\"p99.9\":%f,\"max\":%f}", nanos[nanos.length / 2] / 1e6,
            nanos[nanos.length * 99 / 100] / 1e6, nanos[(int) (nanos.length * 999L / 1000)] / 1e6,
            nanos[nanos.length - 1] / 1e6);
    }

    private static void paced(DefaultMQProducer producer, String topic, int count, double rate) throws Exception {
        long[] due = new long[count];
        long[] sent = new long[count];
        long[] arrived = new long[count];
        AtomicInteger left = new AtomicInteger(count);
        AtomicInteger unsent = new AtomicInteger(count);
        CountDownLatch warm = new CountDownLatch(1);
        push(topic, (messages, context) -> {
            long now = System.nanoTime();
            for (MessageExt message : messages) {
                int number = number(message.getBody());
                warm.countDown();
                if (due[number] != 0 && arrived[number] == 0) {
                    arrived[number] = now - due[number];
                    left.decrementAndGet();
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        producer.send(new Message(topic, body(0)));
        warm.await();
        double cpu = cpuSeconds();
        long began = System.nanoTime() + 100_000_000L;
        for (int number = 0; number < count; number++) {
            long when = began + (long) (number / rate * 1e9);
            for (long wait = when - System.nanoTime(); wait > 0; wait = when - System.nanoTime()) {
                LockSupport.parkNanos(wait);
            }
            due[number] = when;
            int place = number;
            producer.send(new Message(topic, body(number)), new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    sent[place] = System.nanoTime() - when;
                    unsent.decrementAndGet();
                }

                @Override
                public void onException(Throwable error) {
                    error.printStackTrace();
                }
            });
        }
        for (int waited = 0; left.get() > 0 || unsent.get() > 0; waited++) {
            if (waited > 6000) {
                throw new Exception(left.get() + " of " + count + " messages did not arrive");
            }
            Thread.sleep(10);
        }
        report((System.nanoTime() - began) / 1e9, cpuSeconds() - cpu,
            ",\"sent\":" + quantiles(sent) + ",\"arrived\":" + quantiles(arrived));
    }

    public static void main(String[] arguments) {
        try {
            run(arguments);
        } catch (Exception error) {
            error.printStackTrace();
            Runtime.getRuntime().halt(1);
        }
    }

    private static void run(String[] arguments) throws Exception {
        String what = arguments[0];
        namesrv = arguments[1];
        String topic = arguments[2];
        int count = Integer.parseInt(arguments[3]);
        size = Integer.parseInt(arguments[4]);
        width = Integer.parseInt(arguments[5]);
        if (what.equals("push") || what.equals("lite")) {
            drain(what, topic, count);
        } else {
            DefaultMQProducer producer = new DefaultMQProducer(group());
            producer.setNamesrvAddr(namesrv);
            producer.setSendMsgTimeout(10_000);
            producer.setMqClientApiTimeout(30_000);
            producer.setAutoBatch(what.equals("autobatch"));
            producer.start();
            if (what.equals("rate")) {
                paced(producer, topic, count, Double.parseDouble(arguments[6]));
            } else {
                send(producer, what, topic + "-warm", WARM_UP);
                long began = System.nanoTime();
                double cpu = cpuSeconds();
                send(producer, what, topic, count);
                report((System.nanoTime() - began) / 1e9, cpuSeconds() - cpu, "");
            }
        }
        System.out.flush();
        while (System.in.read() >= 0) {
            continue;
        }
        Runtime.getRuntime().halt(0);
    }
}
