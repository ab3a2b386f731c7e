import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.Assignment;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.Subscription;
import org.apache.kafka.clients.consumer.CooperativeStickyAssignor;
import org.apache.kafka.clients.consumer.RangeAssignor;
import org.apache.kafka.clients.consumer.RoundRobinAssignor;
import org.apache.kafka.clients.consumer.StickyAssignor;
import org.apache.kafka.clients.consumer.internals.AbstractPartitionAssignor;
import org.apache.kafka.common.TopicPartition;

/**
 * Kafka's own assignors, `assign` alone on objects that are there already: no bytes are read or written. Reads groups
 * as lines (see ../peers.py) and answers each with one line of JSON.
 */
public final class AssignorPeer {
    private final Map<String, Integer> partitions = new HashMap<>();
    private final Map<String, List<String>> topics = new HashMap<>();
    private final Map<String, Integer> generation = new HashMap<>();
    private final Map<String, List<TopicPartition>> owned = new HashMap<>();

    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        AssignorPeer group = new AssignorPeer();
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] field = line.split(" ", -1);
            switch (field[0]) {
                case "T" -> group.partitions.put(field[1], Integer.parseInt(field[2]));
                case "M" -> {
                    group.generation.put(field[1], Integer.parseInt(field[2]));
                    group.topics.put(field[1], field[3].isEmpty() ? List.of() : Arrays.asList(field[3].split(",")));
                    group.owned.put(field[1], new ArrayList<>());
                }
                case "O" -> {
                    for (String number : field[3].split(",")) {
                        group.owned.get(field[1]).add(new TopicPartition(field[2], Integer.parseInt(number)));
                    }
                }
                case "G" -> {
                    System.gc();
                    System.out.println("ready");
                }
                case "E" -> System.out.println(group.measure(
                        field[1], Integer.parseInt(field[2]), Integer.parseInt(field[3]), Long.parseLong(field[4])));
                default -> group = new AssignorPeer();
            }
            System.out.flush();
        }
    }

    private String measure(String name, int warmups, int rounds, long budgetMs) {
        Stopwatch watch = new Stopwatch();
        try {
            Map<String, List<TopicPartition>> plan = watch.time(
                    warmups, rounds, budgetMs, () -> subscriptions(name), given -> assignor(name).assign(new HashMap<>(partitions), given));
            int least = plan.values().stream().mapToInt(List::size).min().orElse(0);
            int most = plan.values().stream().mapToInt(List::size).max().orElse(0);
            return String.format("{\"decision\": %s, \"loads\": [%d, %d]}", watch.json(), least, most);
        } catch (Exception problem) {
            return String.format("{\"error\": \"%s\"}", problem.getClass().getSimpleName());
        }
    }

    private static AbstractPartitionAssignor assignor(String name) {
        return switch (name) {
            case "range" -> new RangeAssignor();
            case "roundrobin" -> new RoundRobinAssignor();
            case "sticky" -> new StickyAssignor();
            default -> new CooperativeStickyAssignor();
        };
    }

    private Map<String, Subscription> subscriptions(String name) {
        Map<String, Subscription> result = new HashMap<>();
        topics.forEach((member, names) -> {
            ByteBuffer userData = name.equals("sticky") ? stickyUserData(member) : null;
            result.put(member, new Subscription(names, userData, owned.get(member), generation.get(member), Optional.empty()));
        });
        return result;
    }

    private ByteBuffer stickyUserData(String member) {
        StickyAssignor last = new StickyAssignor();
        if (generation.get(member) >= 0) {
            last.onAssignment(
                    new Assignment(owned.get(member)),
                    new ConsumerGroupMetadata("group", generation.get(member), member, Optional.empty()));
        }
        return last.subscriptionUserData(new HashSet<>(topics.get(member)));
    }
}
