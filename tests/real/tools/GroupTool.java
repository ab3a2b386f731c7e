import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import org.apache.kafka.tools.consumer.group.ConsumerGroupCommand;

/** Kafka's own kafka-consumer-groups, many times in one JVM: a line of arguments in; the size of its output, then that. */
final class GroupTool {
    private GroupTool() {}

    public static void main(String[] none) throws Exception {
        PrintStream answers = System.out;
        BufferedReader questions = new BufferedReader(new InputStreamReader(System.in));
        for (String arguments; (arguments = questions.readLine()) != null; ) {
            ByteArrayOutputStream output = new ByteArrayOutputStream();
            System.setOut(new PrintStream(output, true));
            ConsumerGroupCommand.main(arguments.split(" "));
            answers.println(output.size());
            output.writeTo(answers);
            answers.flush();
        }
    }
}
