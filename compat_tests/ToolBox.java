import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationHandler;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.net.URL;
import java.net.URLClassLoader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.List;
import java.util.Map;

import javax.tools.ToolProvider;

import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * Runs Kafka's command line tools one after another in one JVM, whose start costs more than a tool.
 *
 * A line of standard input is a call: main class, standard input and arguments, each in base64,
 * separated by spaces. In place of a class stands a program of one file, by its path. A line of
 * standard output is its end: exit status, standard output and standard error. Classes of tools are
 * loaded anew for each call, so that nothing that one of them keeps in a static field outlives it.
 *
 * Argument: a directory for the classes of programs.
 */
public final class ToolBox {
    /** Where a tool wanted to end the process. */
    private static final class Ended extends Error {
        Ended() {
            super("ended", null, false, false);
        }
    }

    /** Loads what belongs to tools itself, and the rest, the clients above all, once. */
    private static final class ToolLoader extends ClassLoader {
        ToolLoader(ClassLoader parent) {
            super(parent);
        }

        @Override
        protected Class<?> loadClass(String name, boolean resolve) throws ClassNotFoundException {
            if (!name.startsWith("org.apache.kafka.tools.") && !name.startsWith("kafka.tools.")) {
                return super.loadClass(name, resolve);
            }
            synchronized (getClassLoadingLock(name)) {
                Class<?> found = findLoadedClass(name);
                return found != null ? found : define(name);
            }
        }

        private Class<?> define(String name) throws ClassNotFoundException {
            String path = name.replace('.', '/') + ".class";
            try (InputStream stream = getParent().getResourceAsStream(path)) {
                if (stream == null) {
                    throw new ClassNotFoundException(name);
                }
                byte[] bytes = stream.readAllBytes();
                return defineClass(name, bytes, 0, bytes.length);
            } catch (IOException error) {
                throw new ClassNotFoundException(name, error);
            }
        }
    }

    /** What a tool wants to be done when the process ends: for many of them, to close its client. */
    private static final List<Thread> HOOKS = new ArrayList<>();
    private static final long HOOK_PATIENCE_MS = 30_000;
    private static final String SOURCE = ".java";
    /** What Kafka's classes end the process with, before 4.4 and since. */
    private static final List<String> EXITS = List.of(
        "org.apache.kafka.common.utils.Exit", "org.apache.kafka.common.utils.internals.Exit");
    private static Path programs;
    private static Integer status;

    public static void main(String[] args) throws IOException, ReflectiveOperationException {
        programs = Path.of(args[0]);
        BufferedReader calls =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        PrintStream answers = System.out;
        for (String exit : EXITS) {
            takeOver(exit);
        }
        for (String line = calls.readLine(); line != null; line = calls.readLine()) {
            String[] call = Arrays.stream(line.split(" ", -1)).map(ToolBox::decode)
                .toArray(String[]::new);
            ByteArrayOutputStream output = new ByteArrayOutputStream();
            ByteArrayOutputStream errors = new ByteArrayOutputStream();
            System.setIn(new ByteArrayInputStream(call[1].getBytes(StandardCharsets.UTF_8)));
            System.setOut(new PrintStream(output, true, StandardCharsets.UTF_8));
            System.setErr(new PrintStream(errors, true, StandardCharsets.UTF_8));
            status = null;
            run(call[0], Arrays.copyOfRange(call, 2, call.length));
            shutDown();
            System.out.flush();
            System.err.flush();
            answers.println((status == null ? 0 : status) + " " + encode(output) + " "
                + encode(errors));
            answers.flush();
        }
    }

    /** Let what ends the process end the tool, if these Kafkas have the class. */
    private static void takeOver(String name) throws ReflectiveOperationException {
        Class<?> exit;
        try {
            exit = Class.forName(name);
        } catch (ClassNotFoundException absent) {
            return;
        }
        InvocationHandler end = (proxy, method, arguments) -> {
            // The first one counts: a tool may take it for a failure, and end once more.
            status = status == null ? (Integer) arguments[0] : status;
            throw new Ended();
        };
        InvocationHandler keep = (proxy, method, arguments) ->
            HOOKS.add(new Thread((Runnable) arguments[1], (String) arguments[0]));
        Map<String, InvocationHandler> handlers = Map.of(
            "setExitProcedure", end, "setHaltProcedure", end, "setShutdownHookAdder", keep);
        for (Method method : exit.getMethods()) {
            InvocationHandler handler = handlers.get(method.getName());
            if (handler != null) {
                method.invoke(null, Proxy.newProxyInstance(
                    exit.getClassLoader(), method.getParameterTypes(), handler));
            }
        }
    }

    private static void run(String tool, String[] arguments) {
        try {
            ClassLoader loader = loaderOf(tool);
            Thread.currentThread().setContextClassLoader(loader);
            loader.loadClass(nameOf(tool)).getMethod("main", String[].class)
                .invoke(null, (Object) arguments);
        } catch (InvocationTargetException thrown) {
            if (!(thrown.getCause() instanceof Ended)) {
                thrown.getCause().printStackTrace();
                status = status == null ? 1 : status;
            }
        } catch (ReflectiveOperationException | IOException wrong) {
            wrong.printStackTrace();
            status = 1;
        }
    }

    private static String nameOf(String tool) {
        if (!tool.endsWith(SOURCE)) {
            return tool;
        }
        String file = Path.of(tool).getFileName().toString();
        return file.substring(0, file.length() - SOURCE.length());
    }

    private static ClassLoader loaderOf(String tool) throws IOException {
        ClassLoader parent = ToolBox.class.getClassLoader();
        if (!tool.endsWith(SOURCE)) {
            return new ToolLoader(parent);
        }
        Path classes = programs.resolve(nameOf(tool));
        if (!Files.exists(classes)) {
            String[] compile = {"-cp", System.getProperty("java.class.path"), "-proc:none",
                "-d", classes.toString(), tool};
            if (ToolProvider.getSystemJavaCompiler().run(null, null, null, compile) != 0) {
                throw new IOException(tool + " was not compiled");
            }
        }
        return new URLClassLoader(new URL[] {classes.toUri().toURL()}, parent);
    }

    /** As at the end of a process, but for a hook that never ends. */
    private static void shutDown() {
        HOOKS.forEach(Thread::start);
        try {
            for (Thread hook : HOOKS) {
                hook.join(HOOK_PATIENCE_MS);
            }
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt();
        }
        HOOKS.clear();
    }

    private static String decode(String text) {
        return new String(Base64.getDecoder().decode(text), StandardCharsets.UTF_8);
    }

    private static String encode(ByteArrayOutputStream bytes) {
        return Base64.getEncoder().encodeToString(bytes.toByteArray());
    }
}

/**
 * Prints partition 0 of a topic up to its end: kafka-console-consumer knows none, only patience.
 *
 * Arguments: bootstrap servers, topic, isolation level. A line is a record: offset, key and value,
 * these two in base64, `-` for null.
 */
final class ReadToEnd {
    public static void main(String[] args) {
        TopicPartition partition = new TopicPartition(args[1], 0);
        Map<String, Object> settings = Map.of("bootstrap.servers", args[0],
            "isolation.level", args[2], "enable.auto.commit", "false");
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(settings,
                new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            consumer.assign(List.of(partition));
            consumer.seekToBeginning(List.of(partition));
            long end = consumer.endOffsets(List.of(partition)).get(partition);
            while (consumer.position(partition) < end) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(200))) {
                    System.out.println(
                        record.offset() + " " + text(record.key()) + " " + text(record.value()));
                }
            }
        }
    }

    private static String text(byte[] bytes) {
        return bytes == null ? "-" : Base64.getEncoder().encodeToString(bytes);
    }
}
