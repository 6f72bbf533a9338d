package observe

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"

	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"golang.org/x/net/http/httpguts"
	"google.golang.org/protobuf/proto"
)

// A collector sends spans to an OpenTelemetry collector: OTLP over HTTP, in protobuf. It
// implements otlptrace.Client. The SDK's own client would do the same, but links gRPC, which
// makes the binary a third larger (28.9 to 38.5 MB).
type collector struct {
	network *http.Transport
	url     string
	header  http.Header
}

// tracesPath is where a collector takes spans (OTLP 1.5, section "OTLP/HTTP Request").
const tracesPath = "/v1/traces"

// headersVariable has the headers of each request, such as a key of the collector. They are
// secrets, so no setting has them.
const headersVariable = "OTEL_EXPORTER_OTLP_HEADERS"

// newCollector returns a client of the collector at a base URL.
func newCollector(base string) (*collector, error) {
	network := http.DefaultTransport.(*http.Transport).Clone()
	u, err := url.Parse(base)
	if err != nil {
		return nil, err
	}
	if !strings.HasSuffix(u.Path, tracesPath) {
		u = u.JoinPath(tracesPath)
	}
	c := &collector{network: network, url: u.String(), header: http.Header{"Content-Type": {"application/x-protobuf"}, "User-Agent": {"pubsubd"}}}
	for header := range strings.SplitSeq(os.Getenv(headersVariable), ",") {
		if header = strings.TrimSpace(header); header == "" {
			continue
		}
		name, value, ok := strings.Cut(header, "=")
		value, err := url.PathUnescape(strings.TrimSpace(value))
		if !ok || err != nil || !httpguts.ValidHeaderFieldName(strings.TrimSpace(name)) || !httpguts.ValidHeaderFieldValue(value) {
			return nil, fmt.Errorf("%s cannot be read: write name=value,name=value, with %%2C for a comma", headersVariable) // the text is secret
		}
		c.header.Set(strings.TrimSpace(name), value)
	}
	return c, nil
}

// Start implements otlptrace.Client.
func (c *collector) Start(context.Context) error { return nil }

// Stop implements otlptrace.Client.
func (c *collector) Stop(context.Context) error {
	c.network.CloseIdleConnections()
	return nil
}

// UploadTraces implements otlptrace.Client. It makes one attempt. Its errors do not contain
// the headers.
func (c *collector) UploadTraces(ctx context.Context, spans []*tracepb.ResourceSpans) error {
	body, err := proto.Marshal(&tracepb.TracesData{ResourceSpans: spans}) // the same bytes as an ExportTraceServiceRequest
	if err != nil {
		return err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	r.Header = c.header.Clone()
	resp, err := c.network.RoundTrip(r) // follows no redirect, which would get the headers
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, maxAnswerBytes)) // the connection can be used again
	if resp.StatusCode/100 != 2 {
		return fmt.Errorf("the collector answered with status %d", resp.StatusCode)
	}
	return nil
}

// maxAnswerBytes bounds what is read of an answer.
const maxAnswerBytes = 64 << 10
