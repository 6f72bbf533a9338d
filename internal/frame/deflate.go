package frame

import (
	"bytes"
	"compress/flate"
	"runtime"
	"sync"
)

// A long message is deflated (RFC 1951) once per format, and its block is sent to
// everyone who takes that. The block knows nothing of what was sent before, so it
// fits any answer; and since no two messages are compressed together, the size of
// one tells nothing of another's contents.
//
// It ends as a sync flush does, on a whole byte, with an empty stored block, whose
// last bytes are 00 00 ff ff: more may follow, and a WebSocket message goes without
// those four (RFC 7692, section 7.2.1).

// Deflated returns the bytes of the frame in the given format as one block, and
// whether it pays to send it: the frame is a message, its bytes are at least least,
// and the block is a tenth smaller. If least is negative nothing pays. It is tried
// once, whoever asks; the caller must not change the block.
func (f *Frame) Deflated(format Format, least int) (block []byte, pays bool) {
	if f.gap != nil || least < 0 || len(f.Bytes(format)) < least {
		return nil, false
	}
	form := form{format: format, deflated: true}
	block, tried := f.find(form)
	if !tried {
		block = f.deflate(form)
	}
	return block, block != nil
}

// deflate makes the block while others who want it wait: to make it, too, would take
// them no less.
func (f *Frame) deflate(form form) []byte {
	f.deflating.Lock()
	defer f.deflating.Unlock()
	return f.in(form)
}

// deflated returns text as a block, or nil if that is not a tenth smaller.
func deflated(text []byte) []byte {
	c := takeCompressor()
	defer c.release()
	block := c.compress(text)
	if len(block) > len(text)-len(text)/10 {
		return nil
	}
	return bytes.Clone(block)
}

// level is where a message costs least for what it saves. For 1 KiB and 10 KiB of
// JSON the levels 1, 2 and 6 leave 42, 41 and 41 % and 28, 28 and 26 %, and take 12,
// 20 and 25 µs and 36, 55 and 150 µs.
const level = flate.BestSpeed

// A compressor takes more than a MiB, so no more of them exist at one time than can
// run, and none for long that is not needed.
type compressor struct {
	flate *flate.Writer
	out   bytes.Buffer
}

var (
	compressing = make(chan struct{}, runtime.GOMAXPROCS(0)) // a place for each that is in use
	compressors = sync.Pool{New: func() any { return newCompressor() }}
)

func newCompressor() *compressor {
	c := new(compressor)
	var err error
	if c.flate, err = flate.NewWriter(&c.out, level); err != nil {
		panic("BUG: " + err.Error())
	}
	return c
}

func takeCompressor() *compressor {
	compressing <- struct{}{}
	return compressors.Get().(*compressor)
}

// maxCompressed is how large a compressor's output is kept for the next.
const maxCompressed = 64 << 10

func (c *compressor) release() {
	if c.out.Cap() > maxCompressed {
		c.out = bytes.Buffer{}
	}
	compressors.Put(c)
	<-compressing
}

// compress returns text as a block, which is the compressor's own.
func (c *compressor) compress(text []byte) []byte {
	c.out.Reset()
	c.flate.Reset(&c.out)
	_, err := c.flate.Write(text)
	if err == nil {
		err = c.flate.Flush()
	}
	if err != nil {
		panic("BUG: a buffer takes everything: " + err.Error())
	}
	return c.out.Bytes()
}
