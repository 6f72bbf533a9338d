package store

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/metrics"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

// Inspect writes what each file of a log has, a line for a file. It changes nothing, and a
// daemon may use the log meanwhile.
func Inspect(files FS, to io.Writer) error {
	names, err := files.List()
	if err != nil {
		return err
	}
	for _, name := range names {
		line := ""
		if number, ok := numberOf(name, segmentSuffix); ok {
			line, err = inspectFile(files, name, segmentMagic, number)
		} else if number, ok := numberOf(name, checkpointSuffix); ok {
			line, err = inspectFile(files, name, checkpointMagic, number)
		} else {
			line = "not part of the log"
		}
		if err == nil {
			_, err = fmt.Fprintf(to, "%s: %s\n", name, line)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// inspectFile returns what a file has, and where it has a bad record.
func inspectFile(files FS, name, magic string, number uint64) (line string, err error) {
	l, _, err := openFile(files, name, magic, number)
	if err == nil {
		defer l.close()
		line, err = l.inspect(magic == segmentMagic)
	}
	var bad *badRecord
	switch {
	case errors.As(err, &bad):
		return fmt.Sprintf("%s%d bytes; at byte %d, %s", line, l.size, bad.at, bad.why), nil
	case err != nil:
		return "", err
	}
	return fmt.Sprintf("%s%d bytes", line, l.size), nil
}

// inspect reads all records. It returns what they are, also with an error.
func (l *logFile) inspect(isSegment bool) (line string, err error) {
	records, entries, first, last, end := 0, 0, uint64(0), uint64(0), ""
	for {
		r, err := l.next()
		if err == nil {
			records++
		}
		switch {
		case errors.Is(err, io.EOF):
			return l.describe(isSegment, records, entries, first, last) + end, nil
		case err != nil:
			return l.describe(isSegment, records, entries, first, last) + end, err
		case r.kind < kindHeader:
			entries++
			last = r.number
			if first == 0 {
				first = r.number
			}
		case r.kind == kindClosed:
			end = "clean end; "
		}
	}
}

func (l *logFile) describe(isSegment bool, records, entries int, first, last uint64) string {
	if !isSegment {
		return fmt.Sprintf("checkpoint as of entry %d; epoch %s; %d records; ", l.number, l.epoch, records)
	}
	text := fmt.Sprintf("segment after entry %d; epoch %s; boot %q; lease %d; %d entries", l.prev, l.epoch, l.boot, l.lease, entries)
	if entries > 0 {
		text += fmt.Sprintf(", %d to %d", first, last)
	}
	if l.lost > 0 {
		text += fmt.Sprintf("; lost up to %d", l.lost)
	}
	return text + "; "
}

// Verify reads a log as a start does, and changes nothing. The error says why a daemon would
// not start.
func Verify(cfg WALConfig) (Recovery, error) {
	return readOnly(NewWAL(cfg, nil), func(broker.Entry) error { return nil })
}

// Export writes the messages of a log, in NDJSON, in the order of the topics' offsets. It
// changes nothing. Messages that a daemon with that configuration would not hold are left out.
func Export(cfg WALConfig, config broker.Config, m *metrics.Metrics, to io.Writer) error {
	b, w := newOnWAL(cfg, config, m)
	if _, err := readOnly(w, b.applyEntry); err != nil {
		return err
	}
	return b.Export(func(e broker.Entry) error {
		if e.Op != broker.OpPublish {
			return nil
		}
		_, err := to.Write(wire.Content{Message: e.Message}.AppendJSON(nil))
		return err
	})
}

// Repair makes a log readable again: it keeps what can be read, and announces the rest as
// lost. It makes a checkpoint, and gives the old files another name. The configuration is
// the daemon's: messages that the daemon would not hold are left out.
func Repair(cfg WALConfig, config broker.Config, m *metrics.Metrics) (found Recovery, err error) {
	b, w := newOnWAL(cfg, config, m)
	w.cfg.Recovered = func(r Recovery) { found = r }
	w.repairs = true
	now := time.Now()
	if err := w.open(b.applyEntry, now); err != nil {
		return found, err
	}
	return found, w.close(now)
}

// A brokerOnWAL is a broker whose log is not fed.
type brokerOnWAL struct{ *broker.Broker }

func newOnWAL(cfg WALConfig, config broker.Config, m *metrics.Metrics) (b brokerOnWAL, w *WAL) {
	b.Broker = broker.NewWithLog(config, m, time.Now(), func(b *broker.Broker) broker.Log {
		w = NewWAL(cfg, b)
		return w
	})
	return b, w
}

func (b brokerOnWAL) applyEntry(e broker.Entry) error {
	_, err := b.Apply(e)
	return err
}

// readOnly reads a log, and changes nothing.
func readOnly(w *WAL, apply func(broker.Entry) error) (Recovery, error) {
	lock, err := w.fs.Lock()
	if err != nil {
		return Recovery{}, err
	}
	defer func() { _ = lock.Close() }() // nothing was written
	w.apply = apply
	r := &recovering{wal: w, readOnly: true}
	if err := r.read(); err != nil {
		return r.Recovery, err
	}
	if r.newest != nil && r.mayHaveLost() {
		r.Lost = r.lease
	}
	return r.Recovery, nil
}
