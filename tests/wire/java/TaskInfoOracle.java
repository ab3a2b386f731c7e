import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.HexFormat;
import java.util.StringJoiner;
import java.util.stream.Collectors;

/**
 * Reads "subscription 5 hex" and "assignment 5 hex"; answers "hex json": what Java's DataInput reads there, field by field
 * as KIP-429 part II lists them, and the bytes that its DataOutput writes of that; or "! error".
 */
public class TaskInfoOracle {
    private final DataInputStream in;
    private final ByteArrayOutputStream written = new ByteArrayOutputStream();
    private final DataOutputStream out = new DataOutputStream(written);

    private TaskInfoOracle(byte[] bytes) {
        in = new DataInputStream(new ByteArrayInputStream(bytes));
    }

    public static void main(String[] arguments) throws Exception {
        var in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        var out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            out.println(answer(line.split(" ", -1)));
        }
    }

    private static String answer(String[] words) {
        try {
            var info = new TaskInfoOracle(HexFormat.of().parseHex(words[2]));
            String told = words[0].equals("subscription") ? info.subscription() : info.assignment();
            return HexFormat.of().formatHex(info.written.toByteArray()) + " " + told;
        } catch (Exception | Error error) {
            return "! " + error.toString().replace('\n', ' ');
        }
    }

    private String subscription() throws IOException {
        return json(number(), number(), process(), many(() -> json(task(), number())), host());
    }

    private String assignment() throws IOException {
        return json(number(), number(), many(this::task), many(this::task), many(() -> json(host(), many(this::task))), number());
    }

    private String number() throws IOException {
        int value = in.readInt();
        out.writeInt(value);
        return Integer.toString(value);
    }

    private String process() throws IOException {
        long most = in.readLong();
        long least = in.readLong();
        out.writeLong(most);
        out.writeLong(least);
        return String.format("\"%016x%016x\"", most, least);
    }

    private String task() throws IOException {
        return json(number(), number());
    }

    private String host() throws IOException {
        String name = in.readUTF();
        out.writeUTF(name);
        return json(name.chars().mapToObj(unit -> String.format("\\u%04x", unit)).collect(Collectors.joining("", "\"", "\"")), number());
    }

    private interface Read {
        String next() throws IOException;
    }

    private String many(Read one) throws IOException {
        var items = new StringJoiner(",", "[", "]");
        for (int left = Integer.parseInt(number()); left > 0; left--) {
            items.add(one.next());
        }
        return items.toString();
    }

    private static String json(String... items) {
        return "[" + String.join(",", items) + "]";
    }
}
