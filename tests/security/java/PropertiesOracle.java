import java.io.StringReader;
import java.nio.charset.StandardCharsets;
import java.util.HexFormat;
import java.util.Map;
import java.util.Properties;
import java.util.Scanner;
import java.util.TreeMap;

/** Reads properties with java.util.Properties: a line in is `kind version hex`, a line out `hex json`. */
class PropertiesOracle {
    public static void main(String[] arguments) {
        var lines = new Scanner(System.in, StandardCharsets.UTF_8);
        while (lines.hasNextLine()) {
            var words = lines.nextLine().split(" ", -1);
            var text = new String(HexFormat.of().parseHex(words[2]), StandardCharsets.UTF_8);
            System.out.println(" " + answer(text));
            System.out.flush();
        }
    }

    private static String answer(String text) {
        var properties = new Properties();
        try {
            properties.load(new StringReader(text));
        } catch (Exception error) {
            return "null";
        }
        var json = new StringBuilder("{");
        for (Map.Entry<Object, Object> entry : new TreeMap<>(properties).entrySet()) {
            json.append(json.length() > 1 ? "," : "");
            json.append(quoted((String) entry.getKey())).append(":").append(quoted((String) entry.getValue()));
        }
        return json.append("}").toString();
    }

    private static String quoted(String text) {
        var out = new StringBuilder("\"");
        for (char each : text.toCharArray()) {
            out.append(String.format("\\u%04x", (int) each));
        }
        return out.append("\"").toString();
    }
}
