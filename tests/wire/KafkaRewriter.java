import java.lang.reflect.InvocationTargetException;
import java.nio.ByteBuffer;
import java.util.HexFormat;
import java.util.Scanner;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.Message;
import org.apache.kafka.common.protocol.MessageUtil;
import org.apache.kafka.common.protocol.Readable;

/** Reads lines of "name version hex", and prints what Apache Kafka writes after reading those bytes. */
public class KafkaRewriter {
    private static final String[] PLACES = {
        "org.apache.kafka.common.message.%sData",
        "org.apache.kafka.common.message.%s",
        "org.apache.kafka.common.metadata.%s",
        "org.apache.kafka.coordinator.group.generated.%s",
        "org.apache.kafka.coordinator.transaction.generated.%s",
    };

    public static void main(String[] arguments) throws Exception {
        try (Scanner lines = new Scanner(System.in)) {
            while (lines.hasNext()) {
                System.out.println(rewrite(lines.next(), lines.nextShort(), lines.next()));
            }
        }
    }

    private static String rewrite(String name, short version, String hex) throws Exception {
        byte[] bytes = HexFormat.of().parseHex(hex.substring(1));
        ByteBuffer input = ByteBuffer.wrap(bytes);
        try {
            Message message = (Message) find(name)
                .getConstructor(Readable.class, short.class)
                .newInstance(new ByteBufferAccessor(input), version);
            ByteBuffer output = MessageUtil.toByteBufferAccessor(message, version).buffer();
            byte[] written = new byte[output.remaining()];
            output.get(written);
            return "=" + HexFormat.of().formatHex(written) + " " + input.remaining();
        } catch (InvocationTargetException refused) {
            return refused.getCause().toString().replace('\n', ' ');
        }
    }

    private static Class<?> find(String name) throws ClassNotFoundException {
        for (String place : PLACES) {
            try {
                return Class.forName(String.format(place, name));
            } catch (ClassNotFoundException elsewhere) {
                continue;
            }
        }
        throw new ClassNotFoundException(name);
    }
}
