import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.lang.management.ThreadMXBean;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.Subscription;
import org.apache.kafka.clients.consumer.CooperativeStickyAssignor;
import org.apache.kafka.common.TopicPartition;

/**
 * Kafka's cooperative-sticky assignor, timed. Reads groups as lines and prints for each its least CPU milliseconds and moves.
 *
 * <pre>
 * T topic partitions
 * M member generation topic,topic,...
 * O member topic partition,partition,...
 * E rounds
 * </pre>
 */
public final class AssignorPeer {
    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        Map<String, Integer> partitions = new HashMap<>();
        Map<String, List<String>> topics = new HashMap<>();
        Map<String, Integer> generation = new HashMap<>();
        Map<String, List<TopicPartition>> owned = new HashMap<>();
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] field = line.split(" ", -1);
            switch (field[0]) {
                case "T" -> partitions.put(field[1], Integer.parseInt(field[2]));
                case "M" -> {
                    generation.put(field[1], Integer.parseInt(field[2]));
                    topics.put(field[1], Arrays.asList(field[3].split(",")));
                    owned.put(field[1], new ArrayList<>());
                }
                case "O" -> {
                    for (String number : field[3].split(",")) {
                        owned.get(field[1]).add(new TopicPartition(field[2], Integer.parseInt(number)));
                    }
                }
                default -> {
                    report(partitions, topics, generation, owned, Integer.parseInt(field[1]));
                    partitions.clear();
                    topics.clear();
                    generation.clear();
                    owned.clear();
                }
            }
        }
    }

    private static void report(
            Map<String, Integer> partitions,
            Map<String, List<String>> topics,
            Map<String, Integer> generation,
            Map<String, List<TopicPartition>> owned,
            int rounds) {
        ThreadMXBean threads = ManagementFactory.getThreadMXBean();
        Map<TopicPartition, String> holder = new HashMap<>();
        owned.forEach((member, held) -> held.forEach(partition -> holder.put(partition, member)));
        long least = Long.MAX_VALUE;
        int moved = 0;
        for (int round = 0; round < rounds; round++) {
            Map<String, Subscription> subscriptions = new HashMap<>();
            topics.forEach((member, names) -> subscriptions.put(
                    member, new Subscription(names, null, owned.get(member), generation.get(member), Optional.empty())));
            CooperativeStickyAssignor assignor = new CooperativeStickyAssignor();
            long begin = threads.getCurrentThreadCpuTime();
            Map<String, List<TopicPartition>> plan = assignor.assign(new HashMap<>(partitions), subscriptions);
            least = Math.min(least, threads.getCurrentThreadCpuTime() - begin);
            moved = holder.size();
            for (Map.Entry<String, List<TopicPartition>> entry : plan.entrySet()) {
                for (TopicPartition partition : entry.getValue()) {
                    if (entry.getKey().equals(holder.get(partition))) {
                        moved--;
                    }
                }
            }
        }
        System.out.printf("%.3f %d%n", least / 1e6, moved);
        System.out.flush();
    }
}
