import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.OptionalInt;
import java.util.Set;
import java.util.TreeMap;
import java.util.UUID;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.apache.kafka.common.Cluster;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.processor.TaskId;
import org.apache.kafka.streams.processor.assignment.AssignmentConfigs;
import org.apache.kafka.streams.processor.assignment.ProcessId;
import org.apache.kafka.streams.processor.internals.assignment.ClientState;
import org.apache.kafka.streams.processor.internals.assignment.HighAvailabilityTaskAssignor;
import org.apache.kafka.streams.processor.internals.assignment.RackAwareTaskAssignor;

/**
 * Kafka Streams' high-availability task assignor, `assign` alone. Reads lines "E tasks clients threads standbys warmups
 * rounds budget" and answers with the figures of a fresh placement and of one more client joining it.
 */
public final class TasksPeer {
    private static final long BEHIND = 100_000L;
    private static final long RUNNING = -2L;

    private final Set<TaskId> tasks;
    private final int threads;
    private final AssignmentConfigs configs;
    private final RackAwareTaskAssignor withoutRacks;

    private TasksPeer(int tasks, int threads, int standbys) {
        this.tasks = IntStream.range(0, tasks).mapToObj(number -> new TaskId(0, number)).collect(Collectors.toSet());
        this.threads = threads;
        configs = new AssignmentConfigs(
                10_000L, 2, standbys, 600_000L, List.of(), OptionalInt.empty(), OptionalInt.empty(), StreamsConfig.RACK_AWARE_ASSIGNMENT_STRATEGY_NONE);
        withoutRacks = new RackAwareTaskAssignor(
                Cluster.empty(), Map.of(), Map.of(), Map.of(), Map.of(), null, configs, Time.SYSTEM);
    }

    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            int[] field = IntStream.concat(IntStream.of(0), Arrays.stream(line.split(" ")).skip(1).mapToInt(Integer::parseInt))
                    .toArray();
            System.out.println(new TasksPeer(field[1], field[3], field[4]).measure(field[2], field[5], field[6], field[7]));
            System.out.flush();
        }
    }

    private String measure(int clients, int warmups, int rounds, long budgetMs) {
        try {
            Stopwatch fresh = new Stopwatch();
            Map<ProcessId, ClientState> before =
                    fresh.time(warmups, rounds, budgetMs, () -> clients(clients, Map.of()), this::assigned);
            Stopwatch join = new Stopwatch();
            Map<ProcessId, ClientState> after =
                    join.time(warmups, rounds, budgetMs, () -> clients(clients + 1, before), this::assigned);
            int moved = 0;
            for (Map.Entry<ProcessId, ClientState> client : after.entrySet()) {
                ClientState then = before.get(client.getKey());
                for (TaskId task : client.getValue().activeTasks()) {
                    moved += then == null || !then.activeTasks().contains(task) ? 1 : 0;
                }
            }
            return String.format("{\"fresh\": %s, \"join\": %s, \"moved\": %d}", fresh.json(), join.json(), moved);
        } catch (Exception problem) {
            return String.format("{\"error\": \"%s\"}", problem.getClass().getSimpleName());
        }
    }

    private Map<ProcessId, ClientState> assigned(Map<ProcessId, ClientState> clients) {
        new HighAvailabilityTaskAssignor().assign(clients, tasks, tasks, withoutRacks, configs);
        return clients;
    }

    /** So many clients; those placed before are caught up with all they had, everything else starts from nothing. */
    private Map<ProcessId, ClientState> clients(int count, Map<ProcessId, ClientState> before) {
        Map<ProcessId, ClientState> result = new TreeMap<>();
        for (int number = 0; number < count; number++) {
            ProcessId process = new ProcessId(new UUID(0, number));
            ClientState then = before.get(process);
            Set<TaskId> active = then == null ? Set.of() : then.activeTasks();
            Set<TaskId> standby = then == null ? Set.of() : then.standbyTasks();
            Map<TaskId, Long> lags = new HashMap<>();
            for (TaskId task : tasks) {
                lags.put(task, active.contains(task) ? RUNNING : standby.contains(task) ? 0L : BEHIND);
            }
            result.put(process, new ClientState(active, standby, lags, Map.of(), threads, process));
        }
        return result;
    }
}
