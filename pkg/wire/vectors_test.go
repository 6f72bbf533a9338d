package wire

import (
	"encoding/hex"
	"encoding/json"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// The vectors in testdata are for clients in other languages. Our code must read and write
// them, too.

type frameVector struct {
	Name       string       `json:"name"`
	Line       string       `json:"line"`
	DecodeOnly bool         `json:"decode_only"`
	Content    *contentJSON `json:"content"` // nil: the line is refused
}

// contentJSON is the content of a frame, without our own types and their marshalling.
type contentJSON struct {
	Kind   string `json:"kind"`
	Topic  string `json:"topic"`
	Epoch  string `json:"epoch"`
	Offset uint64 `json:"offset"`
	Time   int64  `json:"time"`
	ID     string `json:"id"`
	Key    string `json:"key"`
	Type   string `json:"type"`
	By     string `json:"by"`
	Claims string `json:"claims"` // JSON text

	JSON *string `json:"json"`
	UTF8 *string `json:"utf8"`
	Hex  *string `json:"hex"`

	Reason   GapReason    `json:"reason"`
	After    positionJSON `json:"after"`
	Position positionJSON `json:"position"`

	Positions []positionJSON `json:"positions"`
	Session   string         `json:"session"`
	Limits    *Limits        `json:"limits"`
	Frames    *int           `json:"frames"`

	More bool `json:"more"`

	Title        string `json:"title"`
	Status       int    `json:"status"`
	Code         Code   `json:"code"`
	Detail       string `json:"detail"`
	Remedy       string `json:"remedy"`
	RetryAfterMS int64  `json:"retry_after_ms"`
}

type positionJSON struct {
	Text   string `json:"text"`
	Topic  string `json:"topic"`
	Epoch  string `json:"epoch"`
	Offset uint64 `json:"offset"`
}

func (p positionJSON) position() Position { return Position{p.Topic, p.Epoch, p.Offset} }

func (c *contentJSON) content(t *testing.T) Content {
	t.Helper()
	switch c.Kind {
	case "message":
		m := &Message{
			Position: Position{c.Topic, c.Epoch, c.Offset},
			Time:     c.Time, ID: c.ID, Key: c.Key, Type: c.Type, By: c.By, Data: c.payload(t),
		}
		m.setClaims([]byte(c.Claims))
		return Content{Message: m}
	case "gap":
		c.After.Topic, c.Position.Topic = c.Topic, c.Topic
		return Content{Gap: &Gap{Topic: c.Topic, Reason: c.Reason, After: c.After.position(), Position: c.Position.position(), Detail: c.Detail}}
	case "moved":
		return Content{Moved: &Moved{Positions: c.positions()}}
	case "hello":
		return Content{Hello: &Hello{Positions: c.positions(), Session: c.Session, Limits: c.Limits, Frames: c.Frames}}
	case "end":
		return Content{End: &Problem{
			Title: c.Title, Status: c.Status, Code: c.Code, Detail: c.Detail, Remedy: c.Remedy,
			RetryAfterMS: c.RetryAfterMS, Positions: c.positions(),
		}}
	case "done":
		return Content{Done: &Done{Position: c.Position.position(), More: c.More}}
	}
	require.Equal(t, "heartbeat", c.Kind)
	return Content{}
}

func (c *contentJSON) payload(t *testing.T) []byte {
	t.Helper()
	switch {
	case c.JSON != nil:
		return []byte(*c.JSON)
	case c.UTF8 != nil:
		return []byte(*c.UTF8)
	}
	require.NotNil(t, c.Hex, "a payload is json, utf8 or hex")
	b, err := hex.DecodeString(*c.Hex)
	require.NoError(t, err)
	return b
}

func (c *contentJSON) positions() []Position {
	if c.Positions == nil {
		return nil
	}
	ps := make([]Position, len(c.Positions))
	for i, p := range c.Positions {
		ps[i] = p.position()
	}
	return ps
}

func readVectors(t testing.TB, file string, into any) {
	t.Helper()
	text, err := os.ReadFile("testdata/" + file)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, into))
}

func frameVectors(t testing.TB) []frameVector {
	t.Helper()
	var all []frameVector
	readVectors(t, "frames.json", &all)
	return all
}

func TestFrameVectors(t *testing.T) {
	kinds := make(map[string]int)
	names := make(map[string]bool)
	for _, v := range frameVectors(t) {
		t.Run(v.Name, func(t *testing.T) {
			require.False(t, names[v.Name], "the name is taken")
			names[v.Name] = true
			c, err := ParseLine([]byte(v.Line))
			if v.Content == nil {
				require.Error(t, err)
				kinds["refused"]++
				return
			}
			require.NoError(t, err)
			require.Equal(t, v.Content.content(t), c)
			require.Equal(t, v.Content.Kind == "message" || v.Content.Kind == "gap", c.Counts())
			if !v.DecodeOnly {
				require.Equal(t, v.Line, string(v.Content.content(t).AppendJSON(nil)))
			}
			kinds[v.Content.Kind]++
		})
	}
	for _, kind := range []string{"message", "gap", "moved", "hello", "end", "done", "heartbeat", "refused"} {
		require.NotZero(t, kinds[kind], "no vector of %s", kind)
	}
}

// Each reason has a vector.
func TestFrameVectorsNameEveryGapReason(t *testing.T) {
	var named []GapReason
	for _, v := range frameVectors(t) {
		if v.Content != nil && v.Content.Kind == "gap" && !v.DecodeOnly {
			named = append(named, v.Content.Reason)
		}
	}
	slices.Sort(named)
	require.ElementsMatch(t, GapReasons(), slices.Compact(named))
}

func TestPositionVectors(t *testing.T) {
	var vectors struct {
		Positions []positionJSON `json:"positions"`
		Starts    []struct {
			positionJSON
			From   string `json:"from"`
			Newest int32  `json:"newest"`
		} `json:"starts"`
		InvalidPositions []string `json:"invalid_positions"`
		InvalidStarts    []string `json:"invalid_starts"`
	}
	readVectors(t, "positions.json", &vectors)
	require.NotEmpty(t, vectors.Positions)
	for _, v := range vectors.Positions {
		p, err := ParsePosition(v.Text)
		require.NoError(t, err)
		require.Equal(t, v.position(), p)
		require.Equal(t, v.Text, v.position().String())
	}
	kinds := map[string]From{"now": FromNow, "oldest": FromOldest, "newest": FromNewest, "position": FromPosition}
	require.NotEmpty(t, vectors.Starts)
	for _, v := range vectors.Starts {
		require.Contains(t, kinds, v.From)
		want := Start{Topic: v.Topic, From: kinds[v.From], Newest: v.Newest, Epoch: v.Epoch, After: v.Offset}
		s, err := ParseStart(v.Text)
		require.NoError(t, err)
		require.Equal(t, want, s)
		require.Equal(t, v.Text, want.String())
	}
	require.NotEmpty(t, vectors.InvalidPositions)
	for _, text := range vectors.InvalidPositions {
		_, err := ParsePosition(text)
		require.Error(t, err, "%q", text)
	}
	require.NotEmpty(t, vectors.InvalidStarts)
	for _, text := range vectors.InvalidStarts {
		_, err := ParseStart(text)
		require.Error(t, err, "%q", text)
	}
}

func TestTopicVectors(t *testing.T) {
	var vectors struct{ Valid, Reserved, Invalid []string }
	readVectors(t, "topics.json", &vectors)
	require.NotEmpty(t, vectors.Valid)
	for _, name := range append(vectors.Valid, vectors.Reserved...) {
		require.NoError(t, CheckTopic(name))
	}
	require.NotEmpty(t, vectors.Reserved)
	for _, name := range vectors.Reserved {
		require.True(t, ReservedTopic(name), "%q", name)
	}
	require.NotEmpty(t, vectors.Invalid)
	for _, name := range vectors.Invalid {
		require.Error(t, CheckTopic(name), "%q", name)
	}
}
