package encoding

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"runtime"
	"slices"
	"time"

	"github.com/pubsubd/pubsubd/loadtest"
)

// A Shape is a line of the size table: one message in each encoding.
type Shape struct {
	Name  string `json:"name"`
	Forms []Form `json:"forms"` // JSON, gzip JSON, CBOR, gzip CBOR
}

// A Form is a message in one encoding: its bytes, and what each costs. A message
// that is not compressed has no times for that.
type Form struct {
	Encoding     string  `json:"encoding"`
	Bytes        int     `json:"bytes"`
	EncodeNS     float64 `json:"encode_ns"`
	CompressNS   float64 `json:"compress_ns,omitempty"`
	DecompressNS float64 `json:"decompress_ns,omitempty"`
	DecodeNS     float64 `json:"decode_ns"`
}

// Both is what a message costs its sender and its receiver together.
func (f Form) Both() float64 { return f.EncodeNS + f.CompressNS + f.DecompressNS + f.DecodeNS }

// Form returns the message in that encoding.
func (s *Shape) Form(encoding string) Form {
	i := slices.IndexFunc(s.Forms, func(f Form) bool { return f.Encoding == encoding })
	if i < 0 {
		panic("BUG: a shape without the encoding " + encoding)
	}
	return s.Forms[i]
}

// An effort is how well the size table is measured: each cost so often, in turns, so
// that what happens on the machine meanwhile meets all alike (the median counts),
// and for at least so long.
type effort struct {
	repeats int
	run     time.Duration
}

// effortOf is that of a test whose loads have the given duration.
func effortOf(duration time.Duration) effort {
	return effort{repeats: int(max(1, min(duration/(100*time.Millisecond), 7))), run: min(duration/200, 10*time.Millisecond)}
}

// measureShapes makes the size table.
func measureShapes(ctx context.Context, seed uint64, effort effort) ([]Shape, error) {
	var all []Shape
	for _, s := range shapes(seed) {
		w, err := newWork(s)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", s.name, err)
		}
		costs, err := w.measure(ctx, effort)
		if err != nil {
			return nil, err
		}
		all = append(all, Shape{Name: s.name, Forms: w.forms(costs)})
	}
	return all, nil
}

// Of a work, by index.
const (
	ofJSON = iota
	ofCBOR
	kinds
)

// A work is what is done to one message: encoded, compressed, and back, in JSON and
// CBOR.
type work struct {
	shape    shape
	plain    [kinds][]byte
	zipped   [kinds][]byte
	zipper   *gzip.Writer
	unzipper gzip.Reader
	buffer   bytes.Buffer
	failure  error // of any step; none is expected
}

// A step is one thing that is done to the message of a kind.
type step func(w *work, kind int) error

const (
	encodes = iota
	compresses
	decompresses
	decodes
	steps
)

var stepsOf = [steps]step{
	encodes:      func(w *work, kind int) error { _, err := w.encode(kind); return err },
	compresses:   (*work).compress,
	decompresses: (*work).decompress,
	decodes:      func(w *work, kind int) error { return w.decode(kind, w.shape.fresh()) },
}

// newWork makes all four forms, and sees that each decodes to what was encoded.
func newWork(s shape) (*work, error) {
	w := &work{shape: s, zipper: gzip.NewWriter(io.Discard)}
	for kind := range kinds {
		var err error
		if w.plain[kind], err = w.encode(kind); err != nil {
			return nil, err
		}
		if err := w.compress(kind); err != nil {
			return nil, err
		}
		w.zipped[kind] = bytes.Clone(w.buffer.Bytes())
		if err := w.prove(kind); err != nil {
			return nil, err
		}
	}
	return w, nil
}

func (w *work) prove(kind int) error {
	if err := w.decompress(kind); err != nil {
		return err
	}
	back := w.shape.fresh()
	if err := w.decode(kind, back); err != nil {
		return err
	}
	if !bytes.Equal(w.buffer.Bytes(), w.plain[kind]) || !same(back, w.shape.value) {
		return fmt.Errorf("decodes to another value: %.200q", w.buffer.Bytes())
	}
	return nil
}

func (w *work) encode(kind int) ([]byte, error) {
	if kind == ofJSON {
		return json.Marshal(w.shape.value)
	}
	return cborEncoding.Marshal(w.shape.value)
}

func (w *work) decode(kind int, into any) error {
	if kind == ofJSON {
		return json.Unmarshal(w.plain[kind], into)
	}
	return cborDecoding.Unmarshal(w.plain[kind], into)
}

// compress reuses what it allocates, as a server does.
func (w *work) compress(kind int) error {
	w.buffer.Reset()
	w.zipper.Reset(&w.buffer)
	if _, err := w.zipper.Write(w.plain[kind]); err != nil {
		return err
	}
	return w.zipper.Close()
}

func (w *work) decompress(kind int) error {
	if err := w.unzipper.Reset(bytes.NewReader(w.zipped[kind])); err != nil {
		return err
	}
	w.buffer.Reset()
	_, err := w.buffer.ReadFrom(&w.unzipper)
	return err
}

// costs are the times of every step, in nanoseconds.
type costs [kinds][steps]float64

// measure returns the median of each step's runs.
func (w *work) measure(ctx context.Context, effort effort) (costs, error) {
	var times [kinds][steps][]float64
	for range effort.repeats {
		for kind := range kinds {
			for s, do := range stepsOf {
				if ctx.Err() != nil {
					return costs{}, ctx.Err()
				}
				times[kind][s] = append(times[kind][s], w.time(do, kind, effort.run))
			}
		}
	}
	var c costs
	for kind := range kinds {
		for s := range steps {
			c[kind][s] = median(times[kind][s])
		}
	}
	return c, w.failure
}

// time returns the CPU time of a step in nanoseconds, over a run of at least the
// given length. It is that of the process, for what a step leaves to the garbage
// collector is its cost too.
func (w *work) time(do step, kind int, atLeast time.Duration) float64 {
	runtime.GC() // what came before is not this one's
	for n := 1; ; n *= 2 {
		began, cpu := time.Now(), loadtest.OwnCPU()
		for range n {
			if err := do(w, kind); err != nil {
				w.failure = err
				return 0
			}
		}
		wall, used := time.Since(began), loadtest.OwnCPU()-cpu
		if used == 0 {
			used = wall // where CPU time is not known
		}
		if wall >= atLeast {
			return float64(used) / float64(n)
		}
	}
}

func median(all []float64) float64 {
	sorted := slices.Sorted(slices.Values(all))
	if n := len(sorted); n%2 == 0 {
		return (sorted[n/2-1] + sorted[n/2]) / 2
	}
	return sorted[len(sorted)/2]
}

func (w *work) forms(c costs) []Form {
	var all []Form
	for kind, names := range [kinds][2]string{ofJSON: {JSON, GzipJSON}, ofCBOR: {CBOR, GzipCBOR}} {
		plain := Form{Encoding: names[0], Bytes: len(w.plain[kind]), EncodeNS: c[kind][encodes], DecodeNS: c[kind][decodes]}
		zipped := plain
		zipped.Encoding, zipped.Bytes = names[1], len(w.zipped[kind])
		zipped.CompressNS, zipped.DecompressNS = c[kind][compresses], c[kind][decompresses]
		all = append(all, plain, zipped)
	}
	return all
}
