//go:build !race

// The simulator runs one goroutine at a time: the race detector finds nothing, and takes ten
// times as long.

package store

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/exhaustive"
)

// Each byte of a log is changed once. Then the daemon refuses to start, or announces a
// loss, or has exactly what was published. It never has wrong data. After a repair, it
// starts, and announces a loss.
func TestAChangedByteIsNoticed(t *testing.T) {
	for name, end := range map[string]func(w *world){
		"after a kill":          func(w *world) { w.fs.kill() },
		"after the end":         func(w *world) { w.end(); w.fs.kill() },
		"after a loss of power": func(w *world) { w.boot++; w.fs.kill() }, // of nothing
		"after a sync":          func(w *world) { w.sync(); w.boot++; w.fs.kill() },
	} {
		for _, mode := range []SyncMode{SyncAlways, SyncEverySecond} {
			t.Run(fmt.Sprint(name, ", ", mode), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) { changeEachByte(t, mode, end) })
			})
		}
	}
}

func changeEachByte(t *testing.T, mode SyncMode, end func(w *world)) {
	w := newWorld(1)
	w.faulty, w.tight, w.fs.space, w.fs.beside = false, false, 0, nil
	w.config.HistoryAge, w.config.IdempotencyWindow, w.config.HistoryMessages = time.Hour, time.Hour, 4
	w.cfg.Sync, w.cfg.segmentBytes, w.cfg.checkpointBytes, w.cfg.leaseNumbers, w.cfg.Bytes = mode, 512, 2048, 64, 0
	defer func() {
		if why := recover(); why != nil {
			w.process.end()
			t.Log(w.transcript[0], "\n", w.story())
			require.Fail(t, fmt.Sprint(why))
		}
	}()
	w.write(t)
	end(w)
	w.process.end()
	w.collect()
	newest, reached := w.newest, w.reached
	files := make(map[string][]byte)
	for name, f := range w.fs.names {
		files[name] = f.cache
	}
	starts, refused, announced := 0, 0, 0
	rng := rand.New(rand.NewPCG(1, 2))
	for _, name := range sortedKeys(files) {
		for i := rng.IntN(exhaustive.Step(101)); i < len(files[name]); i += exhaustive.Step(101) {
			by := byte(1) << rng.IntN(8)
			if rng.IntN(4) == 0 {
				by = 0xff
			}
			w.newest, w.reached = newest, reached
			lost, err := w.startWith(files, name, i, by)
			starts++
			switch {
			case err != nil:
				refused++
			case lost:
				announced++
			}
		}
	}
	t.Logf("%d changes: %d starts refused, %d losses announced; %s", starts, refused, announced, w.fs.listing())
	require.Positive(t, refused)
}

// write fills a small log: with several segments and a checkpoint.
func (w *world) write(t *testing.T) {
	require.True(t, w.start())
	w.fs.untilCrash = 0
	for i := range 30 {
		a := w.newAttempt()
		a.message.Data = a.message.Data[:min(len(a.message.Data), 30)]
		a.message.Data[len(a.message.Data)-1] = '"'
		w.try(a)
		switch i {
		case 8:
			w.delete()
		case 13, 20:
			w.sync()
		case 15:
			w.process.wal.wantCheckpoint()
			for w.checkpoint(1) {
			}
		}
		w.settle()
	}
}

// startWith starts a daemon on copies of files, one with a changed byte, and reads all that
// it has. The error says why it refused to start.
func (w *world) startWith(files map[string][]byte, name string, i int, by byte) (lost bool, err error) {
	w.fs.boot()
	w.cfg.BootID = fmt.Sprint("boot", w.boot)
	w.fs.names = make(map[string]*simFile)
	for name, content := range files {
		w.fs.names[name] = &simFile{cache: bytes.Clone(content), disk: content}
	}
	w.fs.disk, w.fs.moves = maps.Clone(w.fs.names), nil
	w.fs.names[name].cache[i] ^= by
	w.life++
	w.transcript = w.transcript[:0]
	w.say("byte %d of %s is changed by %#x", i, name, by)
	p, found, err := w.launch()
	if err != nil {
		w.say("refused: %v", err)
		if i%17 == 0 {
			w.repair() // which takes long
		}
		return false, err
	}
	w.process = p
	w.say("it serves: %+v", found)
	w.check(found.Lost > 0, true)
	return found.Lost > 0, nil
}

// check reads all that a daemon has, publishes again what has a key, and ends it.
func (w *world) check(lost, keys bool) {
	if lost {
		w.outages++
	}
	for _, m := range w.byNumber {
		m.exposed = lost
	}
	w.audit()
	for _, a := range w.attempts {
		if keys && a.message.ID != "" && len(a.found) > 0 && !a.found[0].exposed {
			w.try(a)
		}
	}
	w.settle()
	w.process.wal.abandon()
	w.process.end()
	w.process = nil
}

// repair repairs the log. Then a daemon starts, and its numbers are above all others.
func (w *world) repair() {
	w.fs.boot()
	found, err := Repair(w.cfg)
	w.say("repaired: %+v, %v", found, err)
	if err != nil {
		broken("the log cannot be repaired: %v", err)
	}
	w.fs.boot()
	p, found, err := w.launch()
	if err != nil {
		broken("the repaired log is refused: %v", err)
	}
	w.process = p
	w.say("it serves: %+v", found)
	for _, all := range w.deletions {
		for _, d := range all {
			d.acked = false // the damage may have hit the deletion
		}
	}
	a := w.newAttempt()
	w.try(a)
	w.settle()
	if len(a.found) != 1 {
		broken("a publish fails after the repair: %v", a.tries[0].err)
	}
	w.outages += 9       // several parts may be lost
	w.check(true, false) // the damage may have hit the keys
	w.forget(a)
	for _, all := range w.deletions {
		for _, d := range all {
			d.acked = true
		}
	}
}

// forget removes the newest attempt, which the other logs do not have.
func (w *world) forget(a *attempt) {
	m := a.found[0]
	delete(w.byNumber, m.offset)
	w.byTopic[m.topic()] = slices.DeleteFunc(w.byTopic[m.topic()], func(other *message) bool { return other == m })
	w.attempts = w.attempts[:len(w.attempts)-1]
}
