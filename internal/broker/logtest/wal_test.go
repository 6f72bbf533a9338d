package logtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/metrics"
	"github.com/pubsubd/pubsubd/internal/store"
)

// A folder has a store.WAL, which ends and starts again in all ways.
type folder struct {
	world *world
	fs    store.FS
	sync  store.SyncMode
	rng   *rand.Rand
	boots int // of the machine

	killed *killed
	end    func() // ends the log
}

// onFolder runs the story on a write-ahead log. Some ends are clean. After the others, the
// machine may have started again: nothing is missing, but nobody knows that.
func onFolder(w *world, files store.FS, sync store.SyncMode) {
	w.config.IdempotencyKeys = 200 // so that checkpoints are small, and many
	f := &folder{world: w, fs: files, sync: sync, rng: rand.New(rand.NewPCG(w.seed, 9))}
	w.nodes = []*node{w.start(f.open())}
	w.stop = func() { f.end() }
	w.mishap = func(rng *rand.Rand) {
		w.replace(0, func(b *broker.Broker) *broker.Broker {
			if rng.IntN(4) > 0 {
				f.killed.kill()
			}
			f.end()
			b.Close()
			if rng.IntN(4) == 0 {
				f.boots++
			}
			return f.open()
		})
	}
}

// open returns a broker that continues from the folder.
func (f *folder) open() *broker.Broker {
	f.killed = &killed{FS: f.fs}
	recovered := make(chan store.Recovery, 1)
	b := broker.NewWithLog(f.world.config, metrics.New("test"), time.Now(), func(b *broker.Broker) broker.Log {
		return store.NewWAL(store.WALConfig{
			FS: f.killed, Sync: f.sync, Bytes: 64 << 10, BootID: fmt.Sprint("boot ", f.boots), Seed: f.rng.Uint64,
			Recovered: func(r store.Recovery) { recovered <- r },
		}, b)
	})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	f.world.background.Go(func() { ended <- b.Feed(ctx) })
	f.end = func() {
		cancel()
		if err := <-ended; !errors.Is(err, errKilled) { // nobody asks a process that was killed
			require.ErrorIs(f.world, err, context.Canceled)
		}
	}
	select {
	case r := <-recovered:
		if r.Lost > 0 {
			f.world.lose(r.Lost)
		}
	case err := <-ended:
		require.NoError(f.world, err)
	}
	return b
}

// killed is a file system that does nothing for a process that was killed.
type killed struct {
	store.FS
	mu   sync.RWMutex // held by each call
	dead bool
}

var errKilled = errors.New("the process was killed")

// kill ends all later calls.
func (k *killed) kill() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.dead = true
}

func (k *killed) call(do func() error) error {
	k.mu.RLock()
	defer k.mu.RUnlock()
	if k.dead {
		return errKilled
	}
	return do()
}

func (k *killed) Create(name string) (f store.FileWriter, err error) {
	err = k.call(func() (err error) { f, err = k.FS.Create(name); return err })
	return killedFile{f, k}, err
}

func (k *killed) Rename(from, to string) error {
	return k.call(func() error { return k.FS.Rename(from, to) })
}

func (k *killed) Remove(name string) error { return k.call(func() error { return k.FS.Remove(name) }) }
func (k *killed) SyncDir() error           { return k.call(k.FS.SyncDir) }

type killedFile struct {
	store.FileWriter
	k *killed
}

func (f killedFile) Write(p []byte) (n int, err error) {
	err = f.k.call(func() (err error) { n, err = f.FileWriter.Write(p); return err })
	return n, err
}

func (f killedFile) Sync() error { return f.k.call(f.FileWriter.Sync) }

func (f killedFile) Truncate(size int64) error {
	return f.k.call(func() error { return f.FileWriter.Truncate(size) })
}

// A memoryFS is a folder in memory.
type memoryFS struct {
	mu     sync.Mutex // guards all files, too
	files  map[string]*memoryFile
	locked bool
}

type memoryFile struct {
	fs      *memoryFS
	content []byte
}

func newMemoryFS() *memoryFS { return &memoryFS{files: make(map[string]*memoryFile)} }

func (m *memoryFS) Create(name string) (store.FileWriter, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.files[name] != nil {
		return nil, fs.ErrExist
	}
	m.files[name] = &memoryFile{fs: m}
	return m.files[name], nil
}

func (m *memoryFS) Open(name string) (store.FileReader, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f := m.files[name]
	if f == nil {
		return nil, fs.ErrNotExist
	}
	return memoryReader{bytes.NewReader(slices.Clone(f.content))}, nil
}

func (m *memoryFS) Rename(from, to string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.files[to] = m.files[from]
	delete(m.files, from)
	return nil
}

func (m *memoryFS) Remove(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.files, name)
	return nil
}

func (m *memoryFS) List() ([]string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Sorted(maps.Keys(m.files)), nil
}

func (*memoryFS) SyncDir() error { return nil }

func (m *memoryFS) Lock() (io.Closer, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.locked {
		return nil, errors.New("the folder is locked")
	}
	m.locked = true
	return memoryLock{m}, nil
}

type memoryLock struct{ *memoryFS }

func (l memoryLock) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.locked = false
	return nil
}

func (f *memoryFile) Write(p []byte) (int, error) {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	f.content = append(f.content, p...)
	return len(p), nil
}

func (f *memoryFile) Truncate(size int64) error {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	f.content = f.content[:size]
	return nil
}

func (*memoryFile) Sync() error  { return nil }
func (*memoryFile) Close() error { return nil }

type memoryReader struct{ *bytes.Reader }

func (r memoryReader) Size() (int64, error) { return r.Reader.Size(), nil }
func (memoryReader) Close() error           { return nil }
