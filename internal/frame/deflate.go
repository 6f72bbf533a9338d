package frame

import (
	"bytes"
	"compress/flate"
	"runtime"
	"sync"
)

// A long message is deflated (RFC 1951) once per format into a block that all answers share.
// Each block is compressed by itself. So it fits any answer, and the size of one
// message tells nothing about the contents of another.
//
// A block ends as a sync flush does, on a whole byte, with an empty stored block whose last
// bytes are 00 00 ff ff. More blocks may follow. A WebSocket message omits those four bytes
// (RFC 7692, section 7.2.1).

// Deflated returns the frame in a format as one block, and whether that pays: the frame is
// a message of at least least bytes, and the block is a tenth smaller. With a negative
// least it never pays. The caller must not change the block.
func (f *Frame) Deflated(format Format, least int) (block []byte, pays bool) {
	if f.other != nil || least < 0 || len(f.Bytes(format)) < least {
		return nil, false
	}
	form := form{format: format, deflated: true}
	block, tried := f.find(form)
	if !tried {
		f.deflating.Lock() // waiting takes no longer than compressing it again
		defer f.deflating.Unlock()
		block = f.in(form)
	}
	return block, block != nil
}

// IsEncoded reports whether the frame was encoded in a format, and deflated if it may be; see
// Deflated.
func (f *Frame) IsEncoded(format Format, least int) bool {
	b, made := f.find(form{format: format})
	if made && f.other == nil && least >= 0 && len(b) >= least {
		_, made = f.find(form{format: format, deflated: true})
	}
	return made
}

// deflated returns text as a block, or nil if that is not a tenth smaller.
func deflated(text []byte) []byte {
	compressing <- struct{}{}
	defer func() { <-compressing }()
	c := compressors.Get().(*compressor)
	defer compressors.Put(c)
	block := c.compress(text)
	if len(block) > len(text)-len(text)/10 {
		block = nil
	}
	block = bytes.Clone(block)
	if c.out.Cap() > maxCompressed {
		c.out = bytes.Buffer{}
	}
	return block
}

// level costs the least for what it saves. For 1 KiB of JSON, levels 1, 2 and 6 leave 42, 41
// and 41 % and take 12, 20 and 25 µs. For 10 KiB they leave 28, 28 and 26 % and take 36, 55
// and 150 µs.
const level = flate.BestSpeed

// A compressor takes more than 1 MiB, so only as many are in use as can run at a time. That bounds
// the process, whose cores and memory they are, also if it has two daemons.
type compressor struct {
	flate *flate.Writer
	out   bytes.Buffer
}

var (
	compressing = make(chan struct{}, runtime.GOMAXPROCS(0)) // has a token for each in use
	compressors = sync.Pool{New: func() any {
		writer, err := flate.NewWriter(nil, level)
		if err != nil {
			panic("BUG: " + err.Error())
		}
		return &compressor{flate: writer}
	}}
)

// compress returns text as a block, in the compressor's memory.
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

// maxCompressed is the largest output buffer that a compressor keeps.
const maxCompressed = 64 << 10
