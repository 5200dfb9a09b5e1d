// Go's gRPC: client ADDRESS
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	pb "interop/testing"
)

const (
	echoed    = "x-grpc-test-echo-initial"
	echoedBin = "x-grpc-test-echo-trailing-bin"
	text      = "\t\ntest with whitespace\r\nand Unicode BMP ☺ and non-BMP 😈\t\n"
)

var (
	sizes        = []int32{31415, 9, 2653, 58979}
	requestSizes = []int{27182, 8, 1828, 45904}
	client       pb.TestServiceClient
	other        pb.UnimplementedServiceClient
	background   = context.Background()
)

func check(is bool, about ...interface{}) {
	if !is {
		panic(fmt.Sprint(about...))
	}
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func payload(size int) *pb.Payload { return &pb.Payload{Body: make([]byte, size)} }

func output(size int32, sent int, interval int32) *pb.StreamingOutputCallRequest {
	parameters := []*pb.ResponseParameters{{Size: size, IntervalUs: interval}}
	return &pb.StreamingOutputCallRequest{ResponseParameters: parameters, Payload: payload(sent)}
}

func large(options ...grpc.CallOption) {
	request := &pb.SimpleRequest{ResponseSize: 314159, Payload: payload(271828)}
	response, err := client.UnaryCall(background, request, options...)
	must(err)
	check(len(response.Payload.Body) == 314159)
}

func failsWith(err error, code codes.Code, message string) {
	check(status.Code(err) == code, err)
	check(message == "" || status.Convert(err).Message() == message, err)
}

func begin(ctx context.Context) pb.TestService_FullDuplexCallClient {
	stream, err := client.FullDuplexCall(ctx)
	must(err)
	return stream
}

func exchange(stream pb.TestService_FullDuplexCallClient, size int32, sent int) {
	must(stream.Send(output(size, sent, 0)))
	response, err := stream.Recv()
	must(err)
	check(len(response.Payload.Body) == int(size))
}

var cases = []struct {
	name string
	run  func()
}{
	{"empty_unary", func() {
		_, err := client.EmptyCall(background, &pb.Empty{})
		must(err)
	}},
	{"large_unary", func() { large() }},
	{"client_compressed_unary", func() { large(grpc.UseCompressor(gzip.Name)) }},
	{"client_streaming", func() {
		stream, err := client.StreamingInputCall(background)
		must(err)
		for _, size := range requestSizes {
			must(stream.Send(&pb.StreamingInputCallRequest{Payload: payload(size)}))
		}
		response, err := stream.CloseAndRecv()
		must(err)
		check(response.AggregatedPayloadSize == 74922)
	}},
	{"server_streaming", func() {
		request := &pb.StreamingOutputCallRequest{}
		for _, size := range sizes {
			request.ResponseParameters = append(request.ResponseParameters, &pb.ResponseParameters{Size: size})
		}
		stream, err := client.StreamingOutputCall(background, request)
		must(err)
		for _, size := range sizes {
			response, err := stream.Recv()
			must(err)
			check(len(response.Payload.Body) == int(size))
		}
		_, err = stream.Recv()
		check(err == io.EOF, err)
	}},
	{"ping_pong", func() {
		stream := begin(background)
		for i, size := range sizes {
			exchange(stream, size, requestSizes[i])
		}
		must(stream.CloseSend())
		_, err := stream.Recv()
		check(err == io.EOF, err)
	}},
	{"empty_stream", func() {
		stream := begin(background)
		must(stream.CloseSend())
		_, err := stream.Recv()
		check(err == io.EOF, err)
	}},
	{"custom_metadata", func() {
		ctx := metadata.AppendToOutgoingContext(background, echoed, "value", echoedBin, "\xab\xab\xab")
		var head, trailer metadata.MD
		_, err := client.UnaryCall(ctx, &pb.SimpleRequest{ResponseSize: 1}, grpc.Header(&head), grpc.Trailer(&trailer))
		must(err)
		check(head.Get(echoed)[0] == "value" && trailer.Get(echoedBin)[0] == "\xab\xab\xab", head, trailer)
		stream := begin(ctx)
		exchange(stream, 314159, 271828)
		must(stream.CloseSend())
		_, err = stream.Recv()
		check(err == io.EOF, err)
		head, err = stream.Header()
		must(err)
		check(head.Get(echoed)[0] == "value" && stream.Trailer().Get(echoedBin)[0] == "\xab\xab\xab")
	}},
	{"status_code_and_message", func() {
		echo := &pb.EchoStatus{Code: 2, Message: "test status message"}
		_, err := client.UnaryCall(background, &pb.SimpleRequest{ResponseStatus: echo})
		failsWith(err, codes.Unknown, echo.Message)
		stream := begin(background)
		must(stream.Send(&pb.StreamingOutputCallRequest{ResponseStatus: echo}))
		_, err = stream.Recv()
		failsWith(err, codes.Unknown, echo.Message)
	}},
	{"special_status_message", func() {
		echo := &pb.EchoStatus{Code: 2, Message: text}
		_, err := client.UnaryCall(background, &pb.SimpleRequest{ResponseStatus: echo})
		failsWith(err, codes.Unknown, text)
	}},
	{"unimplemented_method", func() {
		_, err := client.UnimplementedCall(background, &pb.Empty{})
		failsWith(err, codes.Unimplemented, "")
	}},
	{"unimplemented_service", func() {
		_, err := other.UnimplementedCall(background, &pb.Empty{})
		failsWith(err, codes.Unimplemented, "")
	}},
	{"cancel_after_begin", func() {
		ctx, cancel := context.WithCancel(background)
		stream, err := client.StreamingInputCall(ctx)
		must(err)
		cancel()
		_, err = stream.CloseAndRecv()
		failsWith(err, codes.Canceled, "")
	}},
	{"cancel_after_first_response", func() {
		ctx, cancel := context.WithCancel(background)
		stream := begin(ctx)
		exchange(stream, 31415, 27182)
		cancel()
		_, err := stream.Recv()
		failsWith(err, codes.Canceled, "")
	}},
	{"timeout_on_sleeping_server", func() {
		ctx, cancel := context.WithTimeout(background, 50*time.Millisecond)
		defer cancel()
		stream := begin(ctx)
		must(stream.Send(output(31415, 27182, 1e9)))
		_, err := stream.Recv()
		failsWith(err, codes.DeadlineExceeded, "")
	}},
	{"many_calls_at_once", func() {
		var group sync.WaitGroup
		failed := make(chan error, 200)
		for i := 0; i < 200; i++ {
			group.Add(1)
			go func() {
				defer group.Done()
				_, err := client.UnaryCall(background, &pb.SimpleRequest{ResponseSize: 100})
				failed <- err
			}()
		}
		group.Wait()
		for i := 0; i < 200; i++ {
			must(<-failed)
		}
	}},
}

func run(name string, test func()) {
	defer func() {
		if problem := recover(); problem != nil {
			fmt.Println("failed", name+":", problem)
		} else {
			fmt.Println("passed", name)
		}
	}()
	test()
}

func main() {
	connection, err := grpc.Dial(os.Args[1], grpc.WithInsecure(), grpc.WithBlock())
	must(err)
	client, other = pb.NewTestServiceClient(connection), pb.NewUnimplementedServiceClient(connection)
	for _, each := range cases {
		run(each.name, each.run)
	}
}
