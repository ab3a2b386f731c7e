import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.HexFormat;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.Message;
import org.apache.kafka.common.protocol.ObjectSerializationCache;
import org.apache.kafka.common.protocol.Readable;

/** Reads "class version hex" lines; answers "hex json" as Kafka's own generated classes see the message, or "! error". */
public class WireOracle {
    public static void main(String[] arguments) throws Exception {
        var in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        var out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            out.println(answer(line.split(" ", -1)));
        }
    }

    private static String answer(String[] words) {
        try {
            Class<?> type = Class.forName(words[0]);
            short version = Short.parseShort(words[1]);
            var bytes = new ByteBufferAccessor(ByteBuffer.wrap(HexFormat.of().parseHex(words[2])));
            var message = (Message) type.getConstructor(Readable.class, short.class).newInstance(bytes, version);
            if (bytes.remaining() > 0) {
                return "! " + bytes.remaining() + " bytes left";
            }
            var cache = new ObjectSerializationCache();
            var written = new ByteBufferAccessor(ByteBuffer.allocate(message.size(cache, version)));
            message.write(written, cache, version);
            var json = Class.forName(words[0] + "JsonConverter").getMethod("write", type, short.class);
            return HexFormat.of().formatHex(written.buffer().array()) + " " + json.invoke(null, message, version);
        } catch (Exception | Error error) {
            Throwable cause = error.getCause() == null ? error : error.getCause();
            return "! " + cause.toString().replace('\n', ' ');
        }
    }
}
