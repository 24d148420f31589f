import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicReference;
import java.util.concurrent.locks.LockSupport;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** The load of the workload for latency at Kafka; see spark_load.py for the arguments, the messages and what is printed. */
public final class KafkaLoad {
    private static final int PARTITIONS = 5;
    private static final Map<String, Long> COUNTS = new HashMap<>();
    private static final List<Double> DELAYS = new ArrayList<>();
    private static final AtomicLong COUNTED = new AtomicLong();
    private static final CountDownLatch WARM = new CountDownLatch(1);
    private static volatile long measuredFrom = Long.MAX_VALUE;

    private static void heard(byte[] value) {
        long now = System.nanoTime() / 1000;
        String[] words = new String(value, StandardCharsets.US_ASCII).split(" ");
        long due = Long.parseLong(words[0]);
        long count = Long.parseLong(words[2]);
        Long before = COUNTS.put(words[1], count);
        COUNTED.addAndGet(count - (before == null ? 0 : before));
        if (due >= measuredFrom) {
            DELAYS.add((now - due) / 1e3);
        }
        WARM.countDown();
    }

    private static void consume(String servers, String topic) {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", servers);
        properties.put("auto.offset.reset", "earliest");
        try (KafkaConsumer<byte[], byte[]> consumer =
                new KafkaConsumer<>(properties, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            List<TopicPartition> all = new ArrayList<>();
            for (int number = 0; number < PARTITIONS; number++) {
                all.add(new TopicPartition(topic, number));
            }
            consumer.assign(all);
            consumer.seekToBeginning(all);
            while (true) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofSeconds(1))) {
                    heard(record.value());
                }
            }
        }
    }

    public static void main(String[] arguments) throws Exception {
        String servers = arguments[0];
        String topic = arguments[1];
        String results = arguments[2];
        double rate = Double.parseDouble(arguments[3]);
        int warmUp = (int) (Double.parseDouble(arguments[4]) * rate);
        int count = warmUp + (int) (Double.parseDouble(arguments[5]) * rate);
        AtomicReference<Throwable> failure = new AtomicReference<>();
        Thread listener = new Thread(() -> {
            try {
                consume(servers, results);
            } catch (Throwable error) {
                failure.set(error);
            }
        });
        listener.setDaemon(true);
        listener.start();
        Properties properties = new Properties();
        properties.put("bootstrap.servers", servers);
        try (KafkaProducer<byte[], byte[]> producer =
                new KafkaProducer<>(properties, new ByteArraySerializer(), new ByteArraySerializer())) {
            long began = 0;
            for (int number = 0; number < count; number++) {
                long when = number == 0 ? System.nanoTime() : began + (long) (number / rate * 1e9);
                for (long wait = when - System.nanoTime(); wait > 0; wait = when - System.nanoTime()) {
                    LockSupport.parkNanos(wait);
                }
                if (number == warmUp) {
                    measuredFrom = when / 1000;
                }
                byte[] value = String.format("%08d %d", number, when / 1000).getBytes(StandardCharsets.US_ASCII);
                producer.send(new ProducerRecord<>(topic, number % PARTITIONS, null, value), (metadata, error) -> {
                    if (error != null) {
                        failure.set(error);
                    }
                });
                if (number == 0) {
                    if (!WARM.await(120, TimeUnit.SECONDS)) {
                        throw new Exception("no result came");
                    }
                    began = System.nanoTime() + 100_000_000L;
                }
            }
            for (int waited = 0; COUNTED.get() < count && failure.get() == null && waited < 6000; waited++) {
                Thread.sleep(10);
            }
        }
        if (failure.get() != null || COUNTED.get() != count) {
            throw new Exception(COUNTED.get() + " of " + count + " counted", failure.get());
        }
        double[] sorted = DELAYS.stream().mapToDouble(Double::doubleValue).toArray();
        Arrays.sort(sorted);
        System.out.println(String.format(Locale.ROOT,
            "{\"results\":%d,\"p50\":%f,\"p99\":%f,\"p99.9\":%f,\"max\":%f}", sorted.length, sorted[sorted.length / 2],
            sorted[sorted.length * 99 / 100], sorted[(int) (sorted.length * 999L / 1000)], sorted[sorted.length - 1]));
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }
}
