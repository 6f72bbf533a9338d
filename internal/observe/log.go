package observe

import (
	"io"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// A Log is the daemon's log, such as standard error. Nobody who logs waits for its reader:
// lines wait in a bounded queue, and one goroutine writes them. If the queue is full, lines
// are dropped and counted by level. The first lines that are written afterwards are followed
// by one that says how many were dropped. Information is dropped before warnings and errors,
// for which a part of the queue is kept. If a write fails, as when the reader has ended, its
// lines count as dropped, and the next lines are tried again. All methods may be called
// concurrently.
type Log struct {
	*zap.Logger

	to      io.Writer // immutable, like the next five
	encoder zapcore.Encoder
	dropped *prometheus.CounterVec // by level
	wake    chan struct{}          // one token; never closed
	closing chan struct{}          // closed by Close
	ended   chan struct{}          // closed when nothing is written any more

	mu      sync.Mutex // guards the fields below
	waiting lines
	lost    linesByLevel // that were dropped since that was last written
	closed  bool
}

// lines are encoded lines in order.
type lines struct {
	text    []byte
	byLevel linesByLevel
	lost    linesByLevel // as the last of them says, if any
}

// linesByLevel counts lines of zapcore.DebugLevel, InfoLevel, WarnLevel, and ErrorLevel and above.
type linesByLevel [4]int

const (
	// mostWaiting bounds the bytes that wait. As many may be on their way to the reader.
	mostWaiting = 1 << 20

	// mostInformation is the part of them in which lines below a warning may wait.
	mostInformation = mostWaiting * 3 / 4

	// closeWithin bounds how long Close waits for the reader.
	closeWithin = time.Second
)

// NewLog returns a log with lines of every level, in the format json or console, written to a
// file such as os.Stderr. dropped has the label level. The owner calls Close.
func NewLog(to io.Writer, format string, dropped *prometheus.CounterVec) *Log {
	form := zap.NewProductionEncoderConfig()
	form.EncodeTime, form.EncodeDuration = zapcore.RFC3339NanoTimeEncoder, zapcore.StringDurationEncoder
	encoder := zapcore.NewJSONEncoder(form)
	if format == "console" {
		form.EncodeLevel = zapcore.CapitalLevelEncoder
		encoder = zapcore.NewConsoleEncoder(form)
	}
	l := &Log{
		to: to, encoder: encoder, dropped: dropped,
		wake: make(chan struct{}, 1), closing: make(chan struct{}), ended: make(chan struct{}),
	}
	var cores []zapcore.Core
	for i := range l.lost {
		level := zapcore.DebugLevel + zapcore.Level(i)
		dropped.WithLabelValues(level.String()) // a series from the beginning
		cores = append(cores, zapcore.NewCore(encoder, queueOf{l, i}, zap.LevelEnablerFunc(func(of zapcore.Level) bool {
			return min(of, zapcore.ErrorLevel) == level
		})))
	}
	l.Logger = zap.New(zapcore.NewTee(cores...))
	go l.run()
	return l
}

// Close waits until all lines are written, but not longer than closeWithin. Lines that come
// later are dropped.
func (l *Log) Close() {
	close(l.closing)
	timeout := time.NewTimer(closeWithin)
	defer timeout.Stop()
	select {
	case <-l.ended:
	case <-timeout.C:
	}
}

// queueOf takes the lines of one level.
type queueOf struct {
	log   *Log
	level int // index in linesByLevel
}

// Sync implements zapcore.WriteSyncer. It does not wait: Close does.
func (q queueOf) Sync() error { return nil }

// Write implements zapcore.WriteSyncer: it queues one line, or drops it.
func (q queueOf) Write(line []byte) (int, error) {
	l, most := q.log, mostWaiting
	if q.level < int(zapcore.WarnLevel-zapcore.DebugLevel) {
		most = mostInformation
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || len(l.waiting.text)+len(line) > most {
		l.dropLocked(q.level, 1)
		return len(line), nil
	}
	l.waiting.text = append(l.waiting.text, line...)
	l.waiting.byLevel[q.level]++
	select {
	case l.wake <- struct{}{}:
	default:
	}
	return len(line), nil
}

func (l *Log) dropLocked(level, n int) {
	l.lost[level] += n
	l.dropped.WithLabelValues((zapcore.DebugLevel + zapcore.Level(level)).String()).Add(float64(n))
}

// run writes lines until Close, and then those that still wait.
func (l *Log) run() {
	defer close(l.ended)
	var spare []byte
	for closing := false; !closing; {
		select {
		case <-l.wake:
		case <-l.closing:
			closing = true
		}
		batch := l.take(spare[:0], closing)
		if len(batch.text) > 0 {
			l.write(batch)
		}
		if spare = batch.text; cap(spare) > mostWaiting/16 {
			spare = nil
		}
	}
}

// take returns the lines that wait, and one that says how many were dropped. Later ones are
// collected in an empty buffer.
func (l *Log) take(empty []byte, closing bool) lines {
	l.mu.Lock()
	defer l.mu.Unlock()
	batch := l.waiting
	l.waiting, l.closed = lines{text: empty}, closing
	if l.lost == (linesByLevel{}) {
		return batch
	}
	var fields []zap.Field
	for i, n := range l.lost {
		if n > 0 {
			fields = append(fields, zap.Int((zapcore.DebugLevel+zapcore.Level(i)).String(), n))
		}
	}
	entry := zapcore.Entry{Level: zapcore.WarnLevel, Time: time.Now(), Message: "lines of this log were dropped, because its reader was too slow or had ended"}
	line, err := l.encoder.EncodeEntry(entry, fields)
	if err != nil {
		panic("BUG: numbers cannot be encoded: " + err.Error())
	}
	defer line.Free()
	batch.text = append(batch.text, line.Bytes()...)
	batch.lost, l.lost = l.lost, linesByLevel{}
	return batch
}

func (l *Log) write(batch lines) {
	if _, err := l.to.Write(batch.text); err == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for level, n := range batch.byLevel {
		l.dropLocked(level, n)
		l.lost[level] += batch.lost[level] // nobody has read it
	}
}
