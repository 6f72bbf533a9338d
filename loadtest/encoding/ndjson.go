package encoding

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A jsonFrame is a line of NDJSON, read in one pass with the objects in it.
type jsonFrame struct {
	Position *wire.Position  `json:"position"`
	Type     string          `json:"type"`
	Data     []Object        `json:"data"`
	Gap      json.RawMessage `json:"gap"`
}

func jsonFrames(body []byte, each func(frame) error) error {
	for len(body) > 0 {
		line, rest, whole := bytes.Cut(body, []byte("\n"))
		if !whole {
			return fmt.Errorf("answer ends within a frame: %w", io.ErrUnexpectedEOF)
		}
		body = rest
		if len(line) == 0 {
			continue // a heartbeat
		}
		f, err := jsonFrameOf(line)
		if err == nil {
			err = each(f)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func jsonFrameOf(line []byte) (frame, error) {
	var f jsonFrame
	if err := json.Unmarshal(line, &f); err != nil {
		return frame{}, fmt.Errorf("frame %.120q: %w", line, err)
	}
	if f.Position == nil || f.Type != "" {
		return frame{gap: f.Gap != nil, opaque: f.Type, other: fmt.Sprintf("%.200s", line)}, nil
	}
	return frame{position: *f.Position, objects: f.Data}, nil
}
