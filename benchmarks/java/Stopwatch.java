import java.lang.management.ManagementFactory;
import java.lang.management.ThreadMXBean;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.concurrent.Callable;
import java.util.stream.Collectors;

/** CPU milliseconds of this thread (so without the collector's and compiler's threads) for each of several rounds. */
final class Stopwatch {
    private static final ThreadMXBean THREADS = ManagementFactory.getThreadMXBean();

    final List<Double> milliseconds = new ArrayList<>();

    /**
     * Runs up to so many warm-ups, then rounds, until the budget (wall clock) is spent; at least one run is timed.
     * `prepare` is not timed. Returns the last result.
     */
    <I, R> R time(int warmups, int rounds, long budgetMs, Callable<I> prepare, Work<I, R> work) throws Exception {
        long begin = System.nanoTime();
        R result = null;
        for (int round = -warmups; round < rounds; round++) {
            I input = prepare.call();
            long cpu = THREADS.getCurrentThreadCpuTime();
            result = work.run(input);
            double spent = (THREADS.getCurrentThreadCpuTime() - cpu) / 1e6;
            long elapsed = (System.nanoTime() - begin) / 1_000_000;
            if (round >= 0 || elapsed > budgetMs) {
                milliseconds.add(spent);
            }
            if (elapsed > budgetMs) {
                break;
            }
            if (round < -1 && elapsed > budgetMs / 4) {
                round = -1;
            }
        }
        return result;
    }

    String json() {
        return milliseconds.stream().map(ms -> String.format(Locale.ROOT, "%.3f", ms)).collect(Collectors.joining(", ", "[", "]"));
    }

    interface Work<I, R> {
        R run(I input) throws Exception;
    }
}
