import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Collection;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.Map;
import java.util.function.Function;
import java.util.stream.Collectors;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.streams.processor.TaskId;
import org.apache.kafka.streams.processor.internals.assignment.AssignmentInfo;
import org.apache.kafka.streams.processor.internals.assignment.SubscriptionInfo;
import org.apache.kafka.streams.state.HostInfo;

/**
 * Reads "subscription version hex" and "assignment version hex"; answers "hex json": what Kafka Streams' own class reads
 * there, and the bytes of a new one of that version made from those values; or "! error".
 */
public class TaskInfoOracle {
    public static void main(String[] arguments) throws Exception {
        var in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        var out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            out.println(answer(line.split(" ", -1)));
        }
    }

    private static String answer(String[] words) {
        try {
            int version = Integer.parseInt(words[1]);
            ByteBuffer bytes = ByteBuffer.wrap(HexFormat.of().parseHex(words[2]));
            return words[0].equals("subscription") ? subscription(version, bytes) : assignment(version, bytes);
        } catch (Exception | Error error) {
            return "! " + error.toString().replace('\n', ' ');
        }
    }

    private static String subscription(int version, ByteBuffer bytes) {
        var read = SubscriptionInfo.decode(bytes);
        var written = new SubscriptionInfo(version, read.latestSupportedVersion(), read.processId(), read.userEndPoint(),
            read.taskOffsetSums(), (byte) 0, 0, Map.of());
        return hex(written.encode()) + " [" + read.version() + "," + read.latestSupportedVersion() + ","
            + text(read.processId().id().toString()) + "," + list(read.prevTasks(), TaskInfoOracle::task) + ","
            + list(read.standbyTasks(), TaskInfoOracle::task) + ","
            + (read.userEndPoint() == null ? "null" : text(read.userEndPoint())) + "]";
    }

    private static String assignment(int version, ByteBuffer bytes) {
        var read = AssignmentInfo.decode(bytes);
        var written = new AssignmentInfo(version, read.commonlySupportedVersion(), read.activeTasks(), read.standbyTasks(),
            read.partitionsByHost(), new HashMap<>(), read.errCode());
        return hex(written.encode()) + " [" + read.version() + "," + read.commonlySupportedVersion() + ","
            + list(read.activeTasks(), TaskInfoOracle::task) + ","
            + list(read.standbyTasks().entrySet(), entry -> "[" + task(entry.getKey()) + "," + partitions(entry.getValue()) + "]") + ","
            + list(read.partitionsByHost().entrySet(), entry -> "[" + host(entry.getKey()) + "," + partitions(entry.getValue()) + "]") + ","
            + read.errCode() + "]";
    }

    private static String task(TaskId task) {
        return "[" + task.subtopology() + "," + task.partition() + "]";
    }

    private static String host(HostInfo host) {
        return "[" + text(host.host()) + "," + host.port() + "]";
    }

    private static String partitions(Collection<TopicPartition> partitions) {
        return list(partitions, partition -> "[" + text(partition.topic()) + "," + partition.partition() + "]");
    }

    private static <T> String list(Collection<T> items, Function<T, String> written) {
        return items.stream().map(written).collect(Collectors.joining(",", "[", "]"));
    }

    private static String text(String text) {
        return text.chars().mapToObj(unit -> String.format("\\u%04x", unit)).collect(Collectors.joining("", "\"", "\""));
    }

    private static String hex(ByteBuffer buffer) {
        byte[] bytes = new byte[buffer.remaining()];
        buffer.duplicate().get(bytes);
        return HexFormat.of().formatHex(bytes);
    }
}
