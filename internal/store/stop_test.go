package store

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/internal/broker"
	"github.com/pubsubd/pubsubd/internal/exhaustive"
	"github.com/pubsubd/pubsubd/internal/frame"
	"github.com/pubsubd/pubsubd/internal/metrics"
	"github.com/pubsubd/pubsubd/pkg/wire"
)

func newBroker(cfg broker.Config) *broker.Broker {
	return broker.New(cfg, metrics.New("test"), time.Now())
}

// publish publishes a one-letter message and returns its offset.
func publish(t *testing.T, b *broker.Broker, topic string) uint64 {
	t.Helper()
	p, err := b.Publish(&wire.Message{Position: wire.Position{Topic: topic}, Data: []byte("1")}, 0, time.Now())
	require.NoError(t, err)
	return p.Position.Offset
}

// keyed is a message on topic a with an idempotency key.
func keyed(id, data string) *wire.Message {
	return &wire.Message{Position: wire.Position{Topic: "a"}, ID: id, Data: []byte(data)}
}

// publishOnce publishes and returns the offset, or 0 for a mismatch.
func publishOnce(t *testing.T, b *broker.Broker, m *wire.Message) uint64 {
	t.Helper()
	published, err := publishClaimed(b, m, 0)
	if errors.Is(err, &wire.Problem{Code: wire.CodeIdempotencyMismatch}) {
		return 0
	}
	require.NoError(t, err)
	return published.Position.Offset
}

// frames returns what a start such as a@EPOCH:1 reads.
func frames(t *testing.T, b *broker.Broker, start string, limit int) []*frame.Frame {
	t.Helper()
	s, err := wire.ParseStart(strings.ReplaceAll(start, "EPOCH", b.Epoch("a")))
	require.NoError(t, err)
	frames, from := b.ReadTopic(s, frame.Limit{Frames: limit, Bytes: 1 << 20}, time.Now())
	require.NotZero(t, from, "topic %q exists", s.Topic)
	return frames
}

// readTopic returns what frames returns, as "gap(evicted 2-4) 5".
func readTopic(t *testing.T, b *broker.Broker, start string, limit int) string {
	t.Helper()
	var words []string
	for _, f := range frames(t, b, start, limit) {
		if g := f.Gap(); g != nil {
			words = append(words, fmt.Sprintf("gap(%s %d-%d)", g.Reason, g.After.Offset, g.Position.Offset))
		} else {
			words = append(words, fmt.Sprint(f.Position().Offset))
		}
	}
	return strings.Join(words, " ")
}

// floorOf is the highest offset of a topic that was forgotten.
func floorOf(t *testing.T, b *broker.Broker) (floor uint64) {
	t.Helper()
	require.NoError(t, b.Export(func(e broker.Entry) error {
		if e.Op == broker.OpEpoch {
			floor = e.Message.Position.Offset
		}
		return nil
	}))
	return floor
}

func gaugesOf(b *broker.Broker) (g metrics.Gauges) {
	b.Gauges(&g)
	return g
}

func used(b *broker.Broker) int64 {
	g := gaugesOf(b)
	return g.Memory["history"] + g.Memory["frames"] + g.Memory["queues"] + g.Memory["topics"]
}

// A stopped is a folder without faults, and the daemons with SyncStop that use it.
type stopped struct {
	*simFS
	log *StopLog
	cfg WALConfig
}

func newStopped() *stopped {
	d := &stopped{simFS: newSimFS(rand.New(rand.NewPCG(1, 1)))}
	d.cfg = WALConfig{FS: d.simFS, Sync: SyncStop, Seed: func() uint64 { return 42 }}
	return d
}

// start starts a daemon, which has read the state.
func (d *stopped) start(cfg broker.Config) (*broker.Broker, error) {
	b := newBroker(cfg)
	d.log = NewStopLog(d.cfg, b)
	return b, d.log.wal.open(func(e broker.Entry) error {
		_, err := b.Apply(e)
		return err
	}, time.Now())
}

// stop ends the daemon in order, but goes on with another broker.
func (d *stopped) stop(b *broker.Broker) error {
	b.Close()
	defer d.log.wal.abandon()
	d.log.wal.broker = b
	return d.log.wal.writeState()
}

// saved closes the broker and returns the folder with its state.
func saved(t testing.TB, b *broker.Broker) *stopped {
	t.Helper()
	d := newStopped()
	_, err := d.start(broker.Config{})
	require.NoError(t, err)
	require.NoError(t, d.stop(b))
	return d
}

// restore returns the broker of a daemon that continues from a copy of a state.
func restore(cfg broker.Config, from *stopped) (*broker.Broker, error) {
	d := newStopped()
	for name, file := range from.names {
		d.names[name] = &simFile{cache: bytes.Clone(file.cache)}
	}
	return d.start(cfg)
}

// successor returns a broker that continues from b.
func successor(t testing.TB, b *broker.Broker, cfg broker.Config) *broker.Broker {
	t.Helper()
	next, err := restore(cfg, saved(t, b))
	require.NoError(t, err)
	consistent(t, next)
	return next
}

// consistent checks the broker's accounts against what it holds.
func consistent(t testing.TB, b *broker.Broker) {
	t.Helper()
	bytes, subscriptions := 0, 0
	list := b.Topics(broker.NewListing([]string{">", "_>"}, func(string) bool { return true }), "", 1_000_000).Topics
	for _, state := range list {
		bytes, subscriptions = bytes+state.Bytes, subscriptions+state.Subscriptions
		require.LessOrEqual(t, state.Oldest.Offset, state.Position.Offset)
	}
	g := gaugesOf(b)
	require.Equal(t, len(list), g.Topics)
	require.EqualValues(t, bytes, g.Memory["history"])
	require.Equal(t, subscriptions, g.Subscriptions)
}

// contents is all that a broker holds, as text: messages with their ages and lives.
func contents(t testing.TB, b *broker.Broker, now time.Time) map[string]string {
	t.Helper()
	all := make(map[string]string)
	require.NoError(t, b.Export(func(e broker.Entry) error {
		text := fmt.Sprintf("%+v %v %v", *e.Message, e.TTL, e.Key)
		if e.State != nil {
			text += fmt.Sprintf(" %+v", *e.State)
		}
		if e.Op == broker.OpPublish {
			text += fmt.Sprint(" ", min(e.Accepted.UnixMilli(), now.UnixMilli()))
		}
		all[e.Message.Position.Topic] += text + "\n"
		return nil
	}))
	return all
}

func TestASuccessorContinuesWhereItsPredecessorEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBroker(broker.Config{})
		publish(t, b, "a")
		publish(t, b, "a")
		time.Sleep(time.Second)
		next := successor(t, b, broker.Config{})
		require.Equal(t, b.Epoch("a"), next.Epoch("a"))
		require.Equal(t, "2", readTopic(t, next, "a@EPOCH:1", 10), "no message is lost or repeated")
		require.Equal(t, "", readTopic(t, next, "a@EPOCH:2", 10))
		require.Equal(t, uint64(3), publish(t, next, "a"))
	})
}

// A subscriber of a topic whose messages have expired gets no gap after a restart. Higher
// offsets of other topics do not matter, and the topic is not forgotten meanwhile.
func TestASubscriberOfAQuietTopicLosesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBroker(broker.Config{})
		for range 9 {
			publish(t, b, "forgotten")
		}
		publish(t, b, "quiet")
		_, err := b.Join(wire.Start{Topic: "quiet"}, silent{}, true)
		require.NoError(t, err)
		time.Sleep(2 * broker.Config{}.WithDefaults().HistoryAge)
		b.Sweep(time.Now())
		require.EqualValues(t, 9, floorOf(t, b))

		next := successor(t, b, broker.Config{})
		next.Sweep(time.Now())
		require.Equal(t, "", readTopic(t, next, "quiet@EPOCH:1", 10))
		require.Equal(t, uint64(10), publish(t, next, "forgotten"), "its offsets are not used again")
		time.Sleep(time.Minute)
		next.Sweep(time.Now())
		_, ok := next.Topic("quiet")
		require.False(t, ok, "no subscriber has reconnected")
	})
}

// The state has every field of a message.
func TestEveryFieldOfAMessageSurvives(t *testing.T) {
	b := newBroker(broker.Config{})
	m := &wire.Message{Position: wire.Position{Topic: "a"}, Data: []byte("\x00\xff\r\n")}
	fields := reflect.ValueOf(m).Elem()
	for i := range fields.NumField() {
		if f := fields.Field(i); f.Kind() == reflect.String {
			f.SetString(fmt.Sprintf("field.%d", i))
		}
	}
	m.Claims = []byte(`{"name":"<Alice> \u00e9"}`)
	_, err := b.Publish(m, time.Second, time.Now())
	require.NoError(t, err)
	next := successor(t, b, broker.Config{})
	frames, from := next.ReadTopic(wire.Start{Topic: "a", From: wire.FromOldest}, frame.Limit{Frames: 1, Bytes: 1}, time.Now())
	require.NotZero(t, from)
	require.Equal(t, m, frames[0].Message())
	require.Equal(t, time.Second, frames[0].TTL)
}

// JSON values that came in CBOR come back as the same bytes.
func TestCBORSurvives(t *testing.T) {
	b := newBroker(broker.Config{})
	m := &wire.Message{Position: wire.Position{Topic: "a"}, Data: []byte{0x9f, 0x18, 1, 0xff}, CBOR: true}
	_, err := b.Publish(m, 0, time.Now())
	require.NoError(t, err)
	next := successor(t, b, broker.Config{})
	frames, from := next.ReadTopic(wire.Start{Topic: "a", From: wire.FromOldest}, frame.Limit{Frames: 1, Bytes: 1}, time.Now())
	require.NotZero(t, from)
	require.Equal(t, m, frames[0].Message())
}

// An older daemon accepted duplicate members, so its state may have them.
func TestDuplicateMembersSurvive(t *testing.T) {
	b := newBroker(broker.Config{})
	_, err := b.Publish(&wire.Message{Position: wire.Position{Topic: "a"}, Data: []byte(`{"a":1,"a":2}`)}, 0, time.Now())
	require.NoError(t, err)
	require.Equal(t, "1", readTopic(t, successor(t, b, broker.Config{}), "a@oldest", 1))
}

// After random publishes and sweeps, the successor holds the same, and so does the
// successor of that.
func TestRandomStatesSurvive(t *testing.T) {
	for seed := range uint64(30 / exhaustive.Step(10)) {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 0))
			cfg := broker.Config{HistoryMessages: 1 + random.IntN(50)}
			b := newBroker(cfg)
			for range 300 {
				anything(t, b, random)
			}
			b.Sweep(time.Now())
			next := successor(t, b, cfg)
			require.Equal(t, contents(t, b, time.Now()), contents(t, next, time.Now()), "seed %d", seed)
			require.Equal(t, contents(t, b, time.Now()), contents(t, successor(t, next, cfg), time.Now()), "seed %d", seed)
		})
	}
}

// anything does one random thing to a broker.
func anything(t *testing.T, b *broker.Broker, random *rand.Rand) {
	t.Helper()
	switch random.IntN(8) {
	case 0:
		time.Sleep(time.Duration(random.IntN(5000)) * time.Millisecond)
	case 1:
		b.Sweep(time.Now())
	default:
		m := &wire.Message{Position: wire.Position{Topic: fmt.Sprint("t.", random.IntN(10))}, Data: []byte("1")}
		switch random.IntN(4) {
		case 0:
			m.CBOR, m.Data = true, []byte{0x19, 0, byte(random.Uint32())}
		case 1, 2:
			m.Type, m.Key = "application/octet-stream", "schlüssel\n<&>\u2028"
			m.Data = make([]byte, random.IntN(300))
			for i := range m.Data {
				m.Data[i] = byte(random.Uint32())
			}
		}
		ttl := time.Duration(random.IntN(3)) * time.Second
		if random.IntN(4) > 0 {
			_, err := b.Publish(m, ttl, time.Now())
			require.NoError(t, err)
			return
		}
		m.ID = fmt.Sprint(random.IntN(20))
		_, err := publishClaimed(b, m, ttl)
		require.True(t, err == nil || errors.Is(err, &wire.Problem{Code: wire.CodeIdempotencyMismatch}), "%v", err)
	}
}

func TestALargeMessageSurvives(t *testing.T) {
	b := newBroker(broker.Config{HistoryBytes: 64 << 20})
	m := &wire.Message{Position: wire.Position{Topic: "a"}, Type: "x/y", Data: bytes.Repeat([]byte{0xff}, 8<<20)}
	_, err := b.Publish(m, 0, time.Now())
	require.NoError(t, err)
	next := successor(t, b, broker.Config{HistoryBytes: 64 << 20})
	require.Equal(t, "1", readTopic(t, next, "a@oldest", 1))
}

// silent is a subscriber that ignores what it is offered.
type silent struct{}

func (silent) Missed() {}

func (silent) Forgotten() {}

func (silent) Offer([]*frame.Frame, time.Time) {}

// The disk fails while the state is written, at any call. The error says so, and the next daemon
// begins a new epoch. If only the last sync failed, it may also have everything.
func TestAStateThatCannotBeWrittenIsAnError(t *testing.T) {
	for _, f := range []fault{faultCreate, faultWrite, faultSync, faultRename, faultRemove, faultSyncDir} {
		for n := 1; ; n++ {
			d := newStopped()
			b, err := d.start(broker.Config{})
			require.NoError(t, err)
			publish(t, b, "a")
			d.arm(f, n)
			err = d.stop(b)
			if d.failures() == 0 {
				require.NoError(t, err)
				break
			}
			require.Error(t, err, "%s %d", f, n)
			d.heal()
			d.kill()
			d.boot()
			next, err := d.start(broker.Config{})
			require.NoError(t, err)
			_, has := next.Topic("a")
			require.Equal(t, b.Epoch("a") == next.Epoch("a"), has, "%s %d", f, n)
		}
	}
}

// A daemon crashes at any call of the file system, alone or with its machine. What it has
// published once it served is in the next state, or a new epoch begins: no daemon continues from
// a state that another one has continued.
func TestNoStateIsUsedTwice(t *testing.T) {
	for _, power := range []bool{false, true} {
		for n, over := 1, false; !over; n++ {
			for seed := range uint64(5 / exhaustive.Step(2)) {
				d := newStopped()
				d.rng = rand.New(rand.NewPCG(seed, uint64(n)))
				first, err := d.start(broker.Config{})
				require.NoError(t, err)
				publish(t, first, "a")
				require.NoError(t, d.stop(first))

				var served *broker.Broker
				d.guard(func() {
					d.untilCrash = n
					b, err := d.start(broker.Config{})
					require.NoError(t, err)
					served = b
					publish(t, b, "a")
					require.NoError(t, d.stop(b))
					over = true
				})
				if power {
					d.losePower()
				}
				d.kill()
				d.boot()
				last, err := d.start(broker.Config{})
				require.NoError(t, err, "call %d, seed %d", n, seed)
				state, _ := last.Topic("a")
				switch {
				case last.Epoch("a") != first.Epoch("a"):
					require.False(t, over)
					require.Zero(t, state.Messages)
				case served == nil:
					require.Equal(t, 1, state.Messages, "call %d, seed %d", n, seed)
				default:
					require.Equal(t, 2, state.Messages, "call %d, seed %d", n, seed)
				}
			}
		}
	}
}

// A daemon with a write-ahead log gets SyncStop, and the reverse. Nothing is lost, and no offset
// comes again. A log that did not end in order is left alone: it must announce what it has lost.
func TestAFolderChangesItsMode(t *testing.T) {
	d := newDisk(t)
	stopLog := func() (*broker.Broker, error) {
		d.cfg.Sync = SyncStop
		b := newBroker(d.config)
		d.wal = NewStopLog(d.cfg, b).wal
		return b, d.wal.open(func(e broker.Entry) error {
			_, err := b.Apply(e)
			return err
		}, time.Now())
	}
	d.mustStart()
	for range 3 {
		d.publish("b", "1")
	}
	d.publish("a", "1")
	require.NoError(t, d.wal.close(time.Now()))

	b, err := stopLog()
	require.NoError(t, err)
	require.Equal(t, UsedName, d.files())
	require.Equal(t, d.Epoch("a"), b.Epoch("a"))
	require.EqualValues(t, 5, publish(t, b, "a"), "offsets of the log are not used again")
	require.EqualValues(t, 4, publish(t, b, "b"))
	require.NoError(t, d.wal.writeState())
	d.wal.abandon()
	require.Equal(t, "5.checkpoint", d.files())

	d.cfg.Sync = SyncEverySecond
	d.mustStart()
	require.True(t, d.found.Clean)
	d.wantTopic("a", "4 5")
	d.wantTopic("b", "1 2 3 4")
	require.EqualValues(t, 6, d.publish("a", "1"))
	d.kill()
	newest := d.newest()
	segment := d.read(newest)
	require.NoError(t, os.Remove(filepath.Join(d.dir, newest)))
	require.ErrorContains(t, d.start(), "the segment after it is missing", "the state is not the whole log any more")
	d.write(newest, segment)
	files := d.files()
	_, err = stopLog()
	require.ErrorContains(t, err, "start the daemon with another store.sync, and stop it")
	require.Equal(t, files, d.files())
	d.cfg.Sync = SyncEverySecond
	d.mustStart()
	require.NoError(t, d.wal.close(time.Now()))

	b, err = stopLog()
	require.NoError(t, err)
	require.EqualValues(t, 7, publish(t, b, "a"))
	d.kill()
	d.cfg.Sync = SyncEverySecond
	d.mustStart()
	require.True(t, d.found.Used, "it crashed with SyncStop")
	require.NotEqual(t, b.Epoch("a"), d.Epoch("a"))
	require.False(t, d.Has("a"))
	d.publish("a", "1")
	d.kill()
	d.mustStart()
	require.False(t, d.found.Used)
	d.wantTopic("a", "1")
}

func TestMessagesAgeBetweenDaemons(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBroker(broker.Config{HistoryAge: time.Minute})
		publish(t, b, "a")
		time.Sleep(30 * time.Second)
		short := &wire.Message{Position: wire.Position{Topic: "a"}, Data: []byte("1")}
		_, err := b.Publish(short, 20*time.Second, time.Now())
		require.NoError(t, err)
		publish(t, b, "a")
		state := saved(t, b)

		time.Sleep(19 * time.Second)
		next, err := restore(broker.Config{HistoryAge: time.Minute}, state)
		require.NoError(t, err)
		require.Equal(t, "1 2 3", readTopic(t, next, "a@oldest", 10))
		time.Sleep(time.Second)
		require.Equal(t, "1 gap(expired 1-2) 3", readTopic(t, next, "a@oldest", 10))

		time.Sleep(10 * time.Second)
		next, err = restore(broker.Config{HistoryAge: time.Minute}, state)
		require.NoError(t, err)
		require.Equal(t, "gap(expired 0-2) 3", readTopic(t, next, "a@EPOCH:0", 10))
		consistent(t, next)
	})
}

// A publisher whose answer was lost in the restart retries at the successor.
func TestIdempotencyKeysSurvive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBroker(broker.Config{})
		require.Equal(t, uint64(1), publishOnce(t, b, keyed("old", "1")))
		time.Sleep(broker.Config{}.WithDefaults().IdempotencyWindow / 2)
		first, err := publishClaimed(b, keyed("k", "2"), 0)
		require.NoError(t, err)
		time.Sleep(broker.Config{}.WithDefaults().IdempotencyWindow / 2)
		next := successor(t, b, broker.Config{})
		require.Equal(t, 1, gaugesOf(next).IdempotencyKeys, "the window of the other has passed")
		again, err := publishClaimed(next, keyed("k", "2"), 0)
		require.NoError(t, err)
		require.Equal(t, first, again)
		require.Zero(t, publishOnce(t, next, keyed("k", "another")))
		require.Equal(t, uint64(3), publishOnce(t, next, keyed("old", "1")))
		require.Equal(t, 1, gaugesOf(successor(t, b, broker.Config{IdempotencyKeys: 1})).IdempotencyKeys)
	})
}

// If the clock was set back, the time of a message may be in the future. Its age then
// begins with the restored broker.
func TestAFutureMessageAgesFromNow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBroker(broker.Config{})
		m := &wire.Message{Position: wire.Position{Topic: "a"}, Data: []byte("1")}
		_, err := b.Publish(m, 0, time.Now().Add(time.Hour))
		require.NoError(t, err)
		next := successor(t, b, broker.Config{HistoryAge: time.Second})
		next.Sweep(time.Now().Add(time.Second - 1))
		require.Equal(t, "1", readTopic(t, next, "a@EPOCH:0", 10))
		next.Sweep(time.Now().Add(time.Second))
		require.Equal(t, "gap(expired 0-1)", readTopic(t, next, "a@EPOCH:0", 10))
	})
}

func TestASuccessorAppliesItsOwnBounds(t *testing.T) {
	b := newBroker(broker.Config{})
	for range 10 {
		publish(t, b, "a")
	}
	next := successor(t, b, broker.Config{HistoryMessages: 3})
	require.Equal(t, "gap(evicted 0-7) 8 9 10", readTopic(t, next, "a@EPOCH:0", 20))

	publish(t, b, "b")
	next = successor(t, b, broker.Config{MaxTopics: 1})
	require.Equal(t, 1, gaugesOf(next).Topics)
	require.Positive(t, floorOf(t, next), "the offsets of a topic that was dropped are not used again")
}

// A successor with a smaller budget keeps the newest messages of all topics. It stays
// within the budget also while it reads.
func TestASuccessorHoldsItsMemoryBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBroker(broker.Config{})
		for range 1000 {
			for _, topic := range []string{"a", "b", "c"} {
				publish(t, b, topic)
			}
			time.Sleep(time.Millisecond)
		}
		const budget = 64 << 10
		state, next := saved(t, b), newBroker(broker.Config{MemoryBudget: budget})
		require.NoError(t, NewStopLog(state.cfg, next).wal.open(func(e broker.Entry) error {
			_, err := next.Apply(e)
			require.LessOrEqual(t, used(next), int64(budget+1<<10), "a new topic counts before others are evicted")
			return err
		}, time.Now()))
		require.LessOrEqual(t, used(next), int64(budget))
		require.Greater(t, used(next), int64(budget/2))
		for _, topic := range []string{"a", "b", "c"} {
			state, _ := next.Topic(topic)
			require.EqualValues(t, 1000, state.Position.Offset)
			require.Positive(t, state.Oldest.Offset)
		}
	})
}

// A state that is cut at any byte, or has any byte changed, refuses the start, and stays.
func TestADamagedStateIsRejected(t *testing.T) {
	b := newBroker(broker.Config{})
	publish(t, b, "a")
	publish(t, b, "b")
	state := saved(t, b)
	file := state.names[fileName(1, checkpointSuffix)]
	whole := file.cache
	for i := 0; i < len(whole); i += exhaustive.Step(5) {
		damaged := bytes.Clone(whole)
		damaged[i] ^= 0x20
		for _, content := range [][]byte{whole[:i], damaged} {
			file.cache = content
			_, err := state.start(broker.Config{})
			require.Error(t, err, "byte %d", i)
			require.Regexp(t, "repair|empty the folder|start that version", err.Error())
			require.Equal(t, content, state.names[fileName(1, checkpointSuffix)].cache)
		}
	}
}

// publishClaimed publishes a message with a key.
func publishClaimed(b *broker.Broker, m *wire.Message, ttl time.Duration) (wire.Published, error) {
	c, r, _ := b.Claim("", m, ttl, time.Now())
	if c.IsHeld() {
		r, _ = b.Send(broker.Route{}, c, m, ttl, time.Now(), nil)
	}
	return r.Published, r.Err
}
