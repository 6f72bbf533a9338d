package httpapi

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/goccy/go-yaml"
	"github.com/gorilla/mux"
	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/auth"
	"github.com/pubsubd/pubsubd/internal/lane/lanetest"
	"github.com/pubsubd/pubsubd/internal/problem"
	"github.com/pubsubd/pubsubd/internal/request"
	"github.com/pubsubd/pubsubd/internal/session"
	"github.com/pubsubd/pubsubd/internal/transport"
	"github.com/pubsubd/pubsubd/pkg/wire"
	"github.com/pubsubd/pubsubd/pkg/wire/openapi"
)

// document returns the OpenAPI document of the public listener, with the paths and schemas of that
// of the admin listener. It is parsed once: the race detector makes that slow.
func document(t *testing.T) *openapi3.T {
	t.Helper()
	doc, err := loaded()
	require.NoError(t, err)
	return doc
}

var loaded = sync.OnceValues(func() (*openapi3.T, error) {
	both, err := openapi3.NewLoader().LoadFromData(openapi.Public)
	if err != nil {
		return nil, err
	}
	admin, err := openapi3.NewLoader().LoadFromData(openapi.Admin)
	if err != nil {
		return nil, err
	}
	for path, item := range admin.Paths.Map() {
		both.Paths.Set(path, item)
	}
	maps.Copy(both.Components.Schemas, admin.Components.Schemas) // those of both are the same
	return both, nil
})

func TestTheOpenAPIDocumentsAreValid(t *testing.T) {
	for name, text := range map[string][]byte{"openapi.yaml": openapi.Public, "openapi-admin.yaml": openapi.Admin} {
		doc, err := openapi3.NewLoader().LoadFromData(text)
		require.NoError(t, err, name)
		require.Equal(t, "3.1.0", doc.OpenAPI, name)
		require.NoError(t, doc.Validate(context.Background(), openapi3.IsOpenAPI31OrLater()), name)
		for path := range doc.Paths.Map() {
			require.Equal(t, name == "openapi.yaml", strings.HasPrefix(path, "/v1/"), "%s: %s is of the other listener", name, path)
		}
	}
	ids := map[string]bool{}
	for at, op := range operations(document(t)) {
		require.NotEmpty(t, op.OperationID, at)
		require.False(t, ids[op.OperationID], "%s: %s is there twice", at, op.OperationID)
		ids[op.OperationID] = true
	}
}

func TestTheOpenAPIDocumentsHaveTheSameComponents(t *testing.T) {
	type components map[string]map[string]any
	read := func(text []byte) components {
		var doc struct{ Components components }
		require.NoError(t, yaml.Unmarshal(text, &doc))
		return doc.Components
	}
	public, same := read(openapi.Public), 0
	for kind, of := range read(openapi.Admin) {
		for name, component := range of {
			if other, ok := public[kind][name]; ok {
				require.Equal(t, other, component, "%s of openapi-admin.yaml", name)
				same++
			}
		}
	}
	require.GreaterOrEqual(t, same, 4, "a parameter, problems and positions")
}

// operations returns the documented operations by route, such as "GET /v1/topics".
func operations(doc *openapi3.T) map[string]*openapi3.Operation {
	found := map[string]*openapi3.Operation{}
	for path, item := range doc.Paths.Map() {
		for method, op := range item.Operations() {
			found[method+" "+path] = op
		}
	}
	return found
}

func TestTheOpenAPIDocumentHasEveryRouteAndNoOther(t *testing.T) {
	cfg := lanetest.NewParts(lanetest.Settings{})
	defer cfg.Broker.Close()
	served := append(routes(t, newAPI(cfg).router), routes(t, adminRouter(adminOf(cfg, "")))...)
	documented := []string{}
	for at := range operations(document(t)) {
		documented = append(documented, at)
	}
	requireSame(t, documented, served)
}

// The index of endpoints in PROTOCOL.md has every route for clients. HEAD is where GET is.
func TestTheProtocolListsEveryEndpoint(t *testing.T) {
	text, err := os.ReadFile("../../pkg/wire/PROTOCOL.md")
	require.NoError(t, err)
	_, table, found := strings.Cut(string(text), "\n| method | path | what it does | section |\n|---|---|---|---|\n")
	require.True(t, found)
	table, _, _ = strings.Cut(table, "\n\n")
	var listed, documented []string
	for row := range strings.Lines(table) {
		cells := strings.Split(row, "|")
		for method := range strings.SplitSeq(cells[1], ",") {
			for path := range strings.SplitSeq(cells[2], ",") {
				listed = append(listed, strings.TrimSpace(method)+" "+strings.Trim(path, " `"))
			}
		}
	}
	for at := range operations(document(t)) {
		if strings.Contains(at, " /v1/") && !strings.HasPrefix(at, "HEAD ") {
			documented = append(documented, at)
		}
	}
	requireSame(t, listed, documented)
}

// requireSame requires that the document and the code have the same names. The failure
// says which of the two lacks a name.
func requireSame[S ~string](t *testing.T, documented, there []S) {
	t.Helper()
	for _, name := range there {
		require.Contains(t, documented, name, "describe it in openapi.yaml")
	}
	for _, name := range documented {
		require.Contains(t, there, name, "openapi.yaml describes what is not there")
	}
}

// routes lists the routes of a router, except profiles. A route accepts every method; its
// answer to an unknown method lists the known ones in Allow.
func routes(t *testing.T, r *mux.Router) []string {
	found := []string{}
	err := r.Walk(func(route *mux.Route, _ *mux.Router, _ []*mux.Route) error {
		path, err := route.GetPathTemplate()
		if err != nil || route.GetHandler() == nil || strings.HasPrefix(path, "/debug/pprof/") {
			return err
		}
		for _, method := range methodsOf(route.GetHandler(), path) {
			require.NotEmpty(t, method, path)
			found = append(found, method+" "+path)
		}
		return nil
	})
	require.NoError(t, err)
	return found
}

func methodsOf(h http.Handler, path string) []string {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest("BREW", strings.NewReplacer("{", "", "}", "").Replace(path), nil))
	return strings.Split(w.Header().Get("Allow"), ", ")
}

func TestTheOpenAPIDocumentHasEveryCodeAtItsStatus(t *testing.T) {
	doc := document(t)
	codes, byStatus := []wire.Code{}, map[int][]wire.Code{}
	for code, status := range problem.Codes() {
		codes = append(codes, code)
		byStatus[status] = append(byStatus[status], code)
	}
	requireSame(t, enum[wire.Code](schema(t, doc, "Code")), codes)
	for name, response := range doc.Components.Responses {
		digits, isProblem := strings.CutPrefix(name, "Problem")
		if !isProblem {
			continue
		}
		status, err := strconv.Atoi(digits)
		require.NoError(t, err)
		narrowed := response.Value.Content[wire.ProblemType].Schema.Value.AllOf[1].Value.Properties
		require.EqualValues(t, status, narrowed["status"].Value.Const, name)
		requireSame(t, enum[wire.Code](narrowed["code"].Value), byStatus[status])
		delete(byStatus, status)
	}
	delete(byStatus, http.StatusMethodNotAllowed) // no operation has it: the document lists the methods of each path
	require.Empty(t, byStatus, "these statuses have no response in openapi.yaml")
	for at, op := range operations(doc) {
		for status, response := range op.Responses.Map() {
			if strings.Contains(at, " /v1/") && status >= "400" {
				require.Equal(t, "#/components/responses/Problem"+status, response.Ref, at)
			}
		}
	}
}

func TestTheOpenAPIDocumentListsWhatTheCodeLists(t *testing.T) {
	doc := document(t)
	require.ElementsMatch(t, wire.GapReasons(), enum[wire.GapReason](schema(t, doc, "GapReason")))
	require.ElementsMatch(t, session.Waits(), enum[string](schema(t, doc, "Wait")))
	require.ElementsMatch(t, transport.Modes(), enum[transport.Mode](doc.Components.Parameters["mode"].Value.Schema.Value))
	sort := operations(doc)["GET /sessions"].Parameters.GetByInAndName("query", "sort")
	require.ElementsMatch(t, session.Orders(), enum[session.Order](sort.Schema.Value))
	limit := doc.Components.Parameters["limit"].Value.Schema.Value
	require.EqualValues(t, request.MaxPage, *limit.Max)
	require.EqualValues(t, request.DefaultPage, limit.Default)
	ttl := operations(doc)["POST /v1/topics/{topic}/messages"].Parameters.GetByInAndName("query", "ttl")
	require.EqualValues(t, request.MaxTTLSeconds, *ttl.Schema.Value.Max)
	topic := schema(t, doc, "Topic")
	require.EqualValues(t, wire.MaxTopicBytes, *topic.AnyOf[0].Value.MaxLength)
	require.EqualValues(t, len(wire.PresenceTopic(""))+wire.MaxTopicBytes, *topic.MaxLength)
}

func schema(t *testing.T, doc *openapi3.T, name string) *openapi3.Schema {
	t.Helper()
	s := doc.Components.Schemas[name]
	require.NotNil(t, s, name)
	return s.Value
}

// enum returns the values that a schema lists. For a list that may grow, they are the
// first alternative of anyOf.
func enum[S ~string](s *openapi3.Schema) []S {
	if len(s.AnyOf) > 0 {
		s = s.AnyOf[0].Value
	}
	values := make([]S, len(s.Enum))
	for i, v := range s.Enum {
		values[i] = S(fmt.Sprint(v))
	}
	return values
}

// bound are the schemas that describe a struct. The required members of a request are not
// compared.
var bound = map[string]struct {
	of      any
	request bool
}{
	"Gap":               {of: wire.Gap{}},
	"Hello":             {of: wire.Hello{}},
	"Done":              {of: wire.Done{}},
	"Moved":             {of: wire.Moved{}},
	"Limits":            {of: wire.Limits{}},
	"Published":         {of: wire.Published{}},
	"PublishItem":       {of: wire.PublishItem{}},
	"TopicState":        {of: wire.TopicState{}},
	"TopicList":         {of: wire.TopicList{}},
	"Presence":          {of: wire.PresenceList{}},
	"ListedMember":      {of: wire.ListedMember{}},
	"PresenceEvent":     {of: wire.PresenceEvent{}},
	"OpenRequest":       {of: wire.OpenRequest{}, request: true},
	"SessionOpened":     {of: wire.SessionOpened{}},
	"ChangeRequest":     {of: wire.ChangeRequest{}, request: true},
	"SessionChanged":    {of: wire.SessionChanged{}},
	"SessionState":      {of: wire.SessionState{}},
	"SubscriptionState": {of: wire.SubscriptionState{}},
	"SessionList":       {of: wire.SessionList{}},
	"ListedSession":     {of: wire.ListedSession{}},
	"SubjectRequest":    {of: wire.SubjectRequest{}, request: true},
	"SubjectResult":     {of: wire.SubjectResult{}},
	"RevokeRequest":     {of: wire.RevokeRequest{}, request: true},
	"RevokeResult":      {of: wire.RevokeResult{}},
	"RevocationList":    {of: auth.RevocationList{}},
	"Revocation":        {of: auth.Revocation{}},
	"Problem":           {of: wire.Problem{}},
}

// unbound are the object schemas without a struct to compare. Frames are validated with
// the vectors. PublishResult, a choice of two schemas, is validated with answers.
var unbound = []string{"PublishResult", "MessageFrame", "GapFrame", "MovedFrame", "HelloFrame", "EndFrame", "DoneFrame", "PacedStart", "PollRequest", "LogLevel"}

func TestTheOpenAPIDocumentHasEveryMember(t *testing.T) {
	doc := document(t)
	for name, b := range bound {
		t.Run(name, func(t *testing.T) {
			members, always := membersOf(reflect.TypeOf(b.of))
			s := schema(t, doc, name)
			documented := []string{}
			for member := range s.Properties {
				documented = append(documented, member)
			}
			requireSame(t, documented, members)
			if !b.request {
				require.ElementsMatch(t, always, s.Required, "what is always there is required")
			}
		})
	}
	for name, s := range doc.Components.Schemas {
		if _, ok := bound[name]; !ok && s.Value.Type.Is("object") {
			require.Contains(t, unbound, name, "say which struct it describes")
		}
	}
}

// membersOf returns the JSON members of a struct, and those that are always present.
func membersOf(t reflect.Type) (members, always []string) {
	for i := range t.NumField() {
		if f := t.Field(i); f.Anonymous && f.Tag.Get("json") == "" {
			embedded := f.Type
			if embedded.Kind() == reflect.Pointer {
				embedded = embedded.Elem()
			}
			names, there := membersOf(embedded)
			members = append(members, names...)
			if embedded == f.Type {
				always = append(always, there...)
			}
			continue
		}
		name, options, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		if name == "-" {
			continue // internal to the daemon
		}
		members = append(members, name)
		if !strings.Contains(options, "omitempty") {
			always = append(always, name)
		}
	}
	return members, always
}

// The test vectors for clients in other languages fit the document too.
func TestTheOpenAPIDocumentFitsTheVectors(t *testing.T) {
	doc := document(t)
	var frames []struct {
		Name, Line string
		Content    *struct{ Kind string }
	}
	readVectors(t, "frames.json", &frames)
	seen := 0
	for _, v := range frames {
		if v.Content != nil && v.Content.Kind != "heartbeat" { // also of frames to come
			fits(t, schema(t, doc, "Frame"), v.Line)
			seen++
		}
	}
	require.Greater(t, seen, 20)
	var positions struct{ Positions, Starts []struct{ Text string } }
	readVectors(t, "positions.json", &positions)
	for _, v := range positions.Positions {
		fits(t, schema(t, doc, "Position"), strconv.Quote(v.Text))
	}
	for _, v := range positions.Starts {
		fits(t, schema(t, doc, "Start"), strconv.Quote(v.Text))
	}
	var topics struct{ Valid, Reserved, Invalid []string }
	readVectors(t, "topics.json", &topics)
	for _, topic := range slices.Concat(topics.Valid, topics.Reserved) {
		fits(t, schema(t, doc, "Topic"), strconv.Quote(topic))
	}
	for _, topic := range topics.Invalid {
		require.Error(t, schema(t, doc, "Topic").VisitJSON(topic, openapi3.EnableJSONSchema2020()), "%q", topic)
	}
}

func readVectors(t *testing.T, file string, into any) {
	t.Helper()
	text, err := os.ReadFile("../../pkg/wire/testdata/" + file)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, into))
}

// fits requires that a JSON text matches the schema.
func fits(t *testing.T, s *openapi3.Schema, text string) {
	t.Helper()
	var value any
	numbers := json.NewDecoder(strings.NewReader(text))
	numbers.UseNumber() // no float64 holds 1e400
	require.NoError(t, numbers.Decode(&value), text)
	require.NoError(t, s.VisitJSON(value, openapi3.EnableJSONSchema2020()), text)
}
