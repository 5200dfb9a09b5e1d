// Java's gRPC: java Client HOST PORT DESCRIPTORS

import com.google.protobuf.ByteString;
import com.google.protobuf.DescriptorProtos.FileDescriptorSet;
import com.google.protobuf.Descriptors.Descriptor;
import com.google.protobuf.Descriptors.FileDescriptor;
import com.google.protobuf.DynamicMessage;
import com.google.protobuf.InvalidProtocolBufferException;
import com.google.protobuf.TextFormat;
import io.grpc.CallOptions;
import io.grpc.ClientCall;
import io.grpc.ClientInterceptors;
import io.grpc.Channel;
import io.grpc.ManagedChannel;
import io.grpc.Metadata;
import io.grpc.MethodDescriptor;
import io.grpc.MethodDescriptor.MethodType;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import io.grpc.netty.NettyChannelBuilder;
import io.grpc.stub.ClientCalls;
import io.grpc.stub.MetadataUtils;
import io.grpc.stub.StreamObserver;
import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.Arrays;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;

public class Client {
  static final String SERVICE = "grpc.testing.TestService";
  static final String TEXT =
      "\t\ntest with whitespace\r\nand Unicode BMP \u263a and non-BMP \ud83d\ude08\t\n";
  static final int[] SIZES = {31415, 9, 2653, 58979};
  static final int[] REQUEST_SIZES = {27182, 8, 1828, 45904};
  static final Object END = new Object();
  static FileDescriptor file;
  static ManagedChannel channel;

  interface Test {
    void run() throws Exception;
  }

  static DynamicMessage.Builder make(String name, String text) throws Exception {
    DynamicMessage.Builder builder = DynamicMessage.newBuilder(file.findMessageTypeByName(name));
    TextFormat.merge(text, builder);
    return builder;
  }

  /** A message with `size` bytes of payload beside the fields in `text`. */
  static DynamicMessage sent(String name, String text, int size) throws Exception {
    DynamicMessage.Builder builder = make(name, text);
    DynamicMessage.Builder payload = make("Payload", "");
    payload.setField(
        payload.getDescriptorForType().findFieldByName("body"),
        ByteString.copyFrom(new byte[size]));
    builder.setField(builder.getDescriptorForType().findFieldByName("payload"), payload.build());
    return builder.build();
  }

  static DynamicMessage output(int size, int sent, int interval) throws Exception {
    String text = "response_parameters { size: " + size + " interval_us: " + interval + " }";
    return sent("StreamingOutputCallRequest", text, sent);
  }

  static Object get(DynamicMessage message, String name) {
    return message.getField(message.getDescriptorForType().findFieldByName(name));
  }

  static int size(Object message) {
    DynamicMessage payload = (DynamicMessage) get((DynamicMessage) message, "payload");
    return ((ByteString) get(payload, "body")).size();
  }

  static MethodDescriptor.Marshaller<DynamicMessage> coder(String name) {
    Descriptor kind = file.findMessageTypeByName(name);
    return new MethodDescriptor.Marshaller<DynamicMessage>() {
      public InputStream stream(DynamicMessage value) {
        return new ByteArrayInputStream(value.toByteArray());
      }

      public DynamicMessage parse(InputStream stream) {
        try {
          return DynamicMessage.parseFrom(kind, stream);
        } catch (IOException error) {
          throw new RuntimeException(error);
        }
      }
    };
  }

  static MethodDescriptor<DynamicMessage, DynamicMessage> method(
      String service, String name, MethodType type, String request, String response) {
    return MethodDescriptor.<DynamicMessage, DynamicMessage>newBuilder()
        .setFullMethodName(service + "/" + name)
        .setType(type)
        .setRequestMarshaller(coder(request))
        .setResponseMarshaller(coder(response))
        .build();
  }

  static DynamicMessage unary(Channel on, DynamicMessage request, CallOptions options) {
    return ClientCalls.blockingUnaryCall(
        on,
        method(SERVICE, "UnaryCall", MethodType.UNARY, "SimpleRequest", "SimpleResponse"),
        options,
        request);
  }

  static DynamicMessage empty(String service, String name) throws Exception {
    return ClientCalls.blockingUnaryCall(
        channel,
        method(service, name, MethodType.UNARY, "Empty", "Empty"),
        CallOptions.DEFAULT,
        make("Empty", "").build());
  }

  static ClientCall<DynamicMessage, DynamicMessage> stream(
      Channel on, String name, MethodType type, CallOptions options) {
    String kind = name.equals("StreamingInputCall") ? name : "StreamingOutputCall";
    return on.newCall(method(SERVICE, name, type, kind + "Request", kind + "Response"), options);
  }

  /** The responses of a stream in order: messages, then END or a Throwable. */
  static class Responses extends LinkedBlockingQueue<Object>
      implements StreamObserver<DynamicMessage> {
    public void onNext(DynamicMessage message) {
      add(message);
    }

    public void onError(Throwable error) {
      add(error);
    }

    public void onCompleted() {
      add(END);
    }

    Object next() throws InterruptedException {
      return poll(60, TimeUnit.SECONDS);
    }
  }

  static void check(boolean is) {
    if (!is) {
      throw new AssertionError();
    }
  }

  static void fails(Object error, Status.Code code, String text) {
    Status status = Status.fromThrowable((Throwable) error);
    if (status.getCode() != code || !(text == null || text.equals(status.getDescription()))) {
      throw new AssertionError(status);
    }
  }

  static void fails(Test call, Status.Code code, String text) throws Exception {
    try {
      call.run();
    } catch (StatusRuntimeException error) {
      fails(error, code, text);
      return;
    }
    throw new AssertionError("the call succeeded");
  }

  static DynamicMessage failing(String text) throws Exception {
    String escaped = TextFormat.escapeBytes(ByteString.copyFromUtf8(text));
    String fields = "response_status { code: 2 message: \"" + escaped + "\" }";
    return make("SimpleRequest", fields).build();
  }

  static void large(CallOptions options) throws Exception {
    DynamicMessage request = sent("SimpleRequest", "response_size: 314159", 271828);
    check(size(unary(channel, request, options)) == 314159);
  }

  static Map<String, Test> cases() {
    Map<String, Test> cases = new LinkedHashMap<>();
    cases.put("empty_unary", () -> empty(SERVICE, "EmptyCall"));
    cases.put("large_unary", () -> large(CallOptions.DEFAULT));
    cases.put(
        "client_compressed_unary", () -> large(CallOptions.DEFAULT.withCompression("gzip")));
    cases.put(
        "client_streaming",
        () -> {
          Responses responses = new Responses();
          StreamObserver<DynamicMessage> requests =
              ClientCalls.asyncClientStreamingCall(
                  stream(
                      channel,
                      "StreamingInputCall",
                      MethodType.CLIENT_STREAMING,
                      CallOptions.DEFAULT),
                  responses);
          for (int size : REQUEST_SIZES) {
            requests.onNext(sent("StreamingInputCallRequest", "", size));
          }
          requests.onCompleted();
          check(
              get((DynamicMessage) responses.next(), "aggregated_payload_size").equals(74922));
        });
    cases.put(
        "server_streaming",
        () -> {
          StringBuilder text = new StringBuilder();
          for (int size : SIZES) {
            text.append("response_parameters { size: ").append(size).append(" } ");
          }
          Iterator<DynamicMessage> responses =
              ClientCalls.blockingServerStreamingCall(
                  stream(
                      channel,
                      "StreamingOutputCall",
                      MethodType.SERVER_STREAMING,
                      CallOptions.DEFAULT),
                  make("StreamingOutputCallRequest", text.toString()).build());
          for (int size : SIZES) {
            check(size(responses.next()) == size);
          }
          check(!responses.hasNext());
        });
    cases.put(
        "ping_pong",
        () -> {
          Responses responses = new Responses();
          StreamObserver<DynamicMessage> requests = duplex(channel, responses);
          for (int i = 0; i < SIZES.length; i++) {
            requests.onNext(output(SIZES[i], REQUEST_SIZES[i], 0));
            check(size(responses.next()) == SIZES[i]);
          }
          requests.onCompleted();
          check(responses.next() == END);
        });
    cases.put(
        "empty_stream",
        () -> {
          Responses responses = new Responses();
          duplex(channel, responses).onCompleted();
          check(responses.next() == END);
        });
    cases.put(
        "custom_metadata",
        () -> {
          Metadata.Key<String> echoed =
              Metadata.Key.of("x-grpc-test-echo-initial", Metadata.ASCII_STRING_MARSHALLER);
          Metadata.Key<byte[]> binary =
              Metadata.Key.of("x-grpc-test-echo-trailing-bin", Metadata.BINARY_BYTE_MARSHALLER);
          byte[] value = {(byte) 0xab, (byte) 0xab, (byte) 0xab};
          Metadata metadata = new Metadata();
          metadata.put(echoed, "value");
          metadata.put(binary, value);
          AtomicReference<Metadata> head = new AtomicReference<>();
          AtomicReference<Metadata> trailers = new AtomicReference<>();
          Channel on =
              ClientInterceptors.intercept(
                  channel,
                  MetadataUtils.newAttachHeadersInterceptor(metadata),
                  MetadataUtils.newCaptureMetadataInterceptor(head, trailers));
          unary(on, make("SimpleRequest", "response_size: 1").build(), CallOptions.DEFAULT);
          check(head.get().get(echoed).equals("value"));
          check(Arrays.equals(trailers.get().get(binary), value));
        });
    cases.put(
        "status_code_and_message",
        () ->
            fails(
                () -> unary(channel, failing("test status message"), CallOptions.DEFAULT),
                Status.Code.UNKNOWN,
                "test status message"));
    cases.put(
        "special_status_message",
        () ->
            fails(
                () -> unary(channel, failing(TEXT), CallOptions.DEFAULT),
                Status.Code.UNKNOWN,
                TEXT));
    cases.put(
        "unimplemented_method",
        () -> fails(() -> empty(SERVICE, "UnimplementedCall"), Status.Code.UNIMPLEMENTED, null));
    cases.put(
        "unimplemented_service",
        () ->
            fails(
                () -> empty("grpc.testing.UnimplementedService", "UnimplementedCall"),
                Status.Code.UNIMPLEMENTED,
                null));
    cases.put(
        "cancel_after_begin",
        () -> {
          Responses responses = new Responses();
          ClientCall<DynamicMessage, DynamicMessage> call =
              stream(
                  channel,
                  "StreamingInputCall",
                  MethodType.CLIENT_STREAMING,
                  CallOptions.DEFAULT);
          ClientCalls.asyncClientStreamingCall(call, responses);
          call.cancel("by the test", null);
          fails(responses.next(), Status.Code.CANCELLED, null);
        });
    cases.put(
        "cancel_after_first_response",
        () -> {
          Responses responses = new Responses();
          ClientCall<DynamicMessage, DynamicMessage> call =
              stream(channel, "FullDuplexCall", MethodType.BIDI_STREAMING, CallOptions.DEFAULT);
          StreamObserver<DynamicMessage> requests =
              ClientCalls.asyncBidiStreamingCall(call, responses);
          requests.onNext(output(31415, 27182, 0));
          check(size(responses.next()) == 31415);
          call.cancel("by the test", null);
          fails(responses.next(), Status.Code.CANCELLED, null);
        });
    cases.put(
        "timeout_on_sleeping_server",
        () -> {
          Responses responses = new Responses();
          CallOptions options =
              CallOptions.DEFAULT.withDeadlineAfter(50, TimeUnit.MILLISECONDS);
          ClientCalls.asyncBidiStreamingCall(
                  stream(channel, "FullDuplexCall", MethodType.BIDI_STREAMING, options),
                  responses)
              .onNext(output(31415, 27182, 1_000_000_000));
          fails(responses.next(), Status.Code.DEADLINE_EXCEEDED, null);
        });
    return cases;
  }

  static StreamObserver<DynamicMessage> duplex(Channel on, Responses responses) {
    return ClientCalls.asyncBidiStreamingCall(
        stream(on, "FullDuplexCall", MethodType.BIDI_STREAMING, CallOptions.DEFAULT), responses);
  }

  public static void main(String[] arguments) throws Exception {
    FileDescriptorSet set = FileDescriptorSet.parseFrom(Files.readAllBytes(Paths.get(arguments[2])));
    file = FileDescriptor.buildFrom(set.getFile(0), new FileDescriptor[0]);
    channel =
        NettyChannelBuilder.forAddress(arguments[0], Integer.parseInt(arguments[1]))
            .usePlaintext()
            .build();
    for (Map.Entry<String, Test> each : cases().entrySet()) {
      try {
        each.getValue().run();
        System.out.println("passed " + each.getKey());
      } catch (Throwable error) {
        System.out.println("failed " + each.getKey() + ": " + error);
        error.printStackTrace(System.out);
      }
    }
    channel.shutdownNow();
    System.exit(0);
  }
}
