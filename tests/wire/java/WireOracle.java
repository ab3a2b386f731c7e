import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HexFormat;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.Message;
import org.apache.kafka.common.protocol.ObjectSerializationCache;
import org.apache.kafka.common.protocol.Readable;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.Record;
import org.apache.kafka.common.record.internal.SimpleRecord;

/**
 * Reads "class version hex" lines; answers "hex json" as Kafka's own generated classes see the message, or "! error".
 * The class "records" is a record batch, its version ignored: the answer is a batch Java wrote with the same records and
 * compression, and the records.
 */
public class WireOracle {
    public static void main(String[] arguments) throws Exception {
        var in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        var out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            out.println(answer(line.split(" ", -1)));
        }
    }

    private static String records(byte[] data) {
        var batch = MemoryRecords.readableRecords(ByteBuffer.wrap(data)).firstBatch();
        batch.ensureValid();
        var copies = new ArrayList<SimpleRecord>();
        var values = new ArrayList<String>();
        for (Record record : batch) {
            copies.add(new SimpleRecord(record.timestamp(), hexable(record.key()), hexable(record.value()), record.headers()));
            values.add("[" + record.offset() + "," + record.timestamp() + "," + hex(record.key()) + "," + hex(record.value()) + "]");
        }
        var compression = Compression.of(batch.compressionType()).build();
        var written = MemoryRecords.withRecords(batch.baseOffset(), compression, copies.toArray(new SimpleRecord[0]));
        byte[] bytes = new byte[written.sizeInBytes()];
        written.buffer().get(bytes);
        return HexFormat.of().formatHex(bytes) + " " + values;
    }

    private static byte[] hexable(ByteBuffer buffer) {
        if (buffer == null) {
            return null;
        }
        byte[] bytes = new byte[buffer.remaining()];
        buffer.duplicate().get(bytes);
        return bytes;
    }

    private static String hex(ByteBuffer buffer) {
        return buffer == null ? "null" : '"' + HexFormat.of().formatHex(hexable(buffer)) + '"';
    }

    private static String answer(String[] words) {
        try {
            if (words[0].equals("records")) {
                return records(HexFormat.of().parseHex(words[2]));
            }
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
