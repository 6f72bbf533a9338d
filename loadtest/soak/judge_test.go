package soak

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

// A court is a topic with a past that is written by hand: what was published, and
// what subscribers say they saw.
type court struct {
	*testing.T
	ledger     *ledger
	retentions *retentions
	trails     []*trail
	epoch      string
}

// newCourt has a daemon that keeps four messages of a topic for ten seconds.
func newCourt(t *testing.T) *court {
	p, f := newPayloads(1, 200), newFaults()
	c := &court{T: t, ledger: newLedger([]string{"a", "b"}, p, f, time.UnixMilli(0)), retentions: &retentions{}, epoch: "e1"}
	c.retentions.add(0, Retention{Messages: 4, Bytes: 1 << 20, Age: 10 * time.Second})
	return c
}

// at returns a position: "5" of the epoch e1, or "e2:5".
func at(text string) wire.Position {
	epoch, offset, ok := strings.Cut(text, ":")
	if !ok {
		epoch, offset = "e1", text
	}
	n, err := strconv.ParseUint(offset, 10, 64)
	if err != nil {
		panic(err)
	}
	return wire.Position{Topic: "a", Epoch: epoch, Offset: n}
}

// lasting returns the identity of a message that has no life of its own, the n-th.
func (c *court) lasting(n uint64) identity {
	for id := newIdentity(0, 0, 1000*n); ; id++ {
		if c.ledger.payloads.formOf(id).ttl == 0 {
			return id
		}
	}
}

// published puts messages into the ledger, one each 10 ms from then on (in
// milliseconds).
func (c *court) published(epoch string, from, to uint64, then int64) {
	for offset := from; offset <= to; offset++ {
		p := wire.Position{Topic: "a", Epoch: epoch, Offset: offset}
		c.ledger.accepted(c.lasting(c.number(p)), wire.Published{Position: p, Time: then})
		then += 10
	}
	c.epoch = epoch
}

func (c *court) number(p wire.Position) uint64 {
	n, _ := strconv.ParseUint(p.Epoch[1:], 10, 64)
	return 1000*n + p.Offset
}

// subscriber begins before the first message, and is at the end to have everything.
func (c *court) subscriber() *trail {
	t := newTrail(c.ledger, "s", wire.StartAfter(at("0")), at("0"), time.UnixMilli(0), time.UnixMilli(0))
	c.trails = append(c.trails, t)
	return t
}

// saw has the trail see, at a time, what words say: "3" or "e2:3" is a message,
// "slow(2-5)" a gap.
func (c *court) saw(t *trail, then int64, words ...string) {
	for _, word := range words {
		reason, gap, ok := strings.Cut(strings.TrimSuffix(word, ")"), "(")
		now := time.UnixMilli(then)
		if !ok {
			t.frame(wire.Content{Message: c.message(word)}, now)
			continue
		}
		after, position, _ := strings.Cut(gap, "-")
		t.frame(wire.Content{Gap: &wire.Gap{Topic: "a", Reason: wire.GapReason(reason), After: at(after), Position: at(position)}}, now)
	}
}

// message returns what the daemon delivers of a position.
func (c *court) message(word string) *wire.Message {
	p := at(word)
	id := c.lasting(c.number(p))
	f := c.ledger.payloads.formOf(id)
	e := c.ledger.topics[0].numbering(c.ledger.epoch(p.Epoch)).at(p.Offset)
	return &wire.Message{Position: p, Time: int64(e.time), Type: f.mediaType, Data: c.ledger.payloads.body(id, f)}
}

// judge returns the kinds of faults that were found.
func (c *court) judge() string {
	judgeTopic(c.ledger, c.retentions, 0, c.ledger.epoch(c.epoch), c.trails)
	var kinds []string
	for _, f := range c.ledger.faults.kept {
		kinds = append(kinds, string(f.Kind))
	}
	return strings.Join(kinds, ", ")
}

// What a correct daemon may do.
func TestWhatIsRightIsNotAFault(t *testing.T) {
	for _, c := range []struct {
		name string
		saw  []string
	}{
		{"everything", []string{"1", "2", "3", "4", "5", "6", "7", "8"}},
		{"evicted at the beginning", []string{"evicted(0-4)", "5", "6", "7", "8"}},
		{"fewer lost than could be", []string{"evicted(0-2)", "3", "4", "5", "6", "7", "8"}},
		{"slow in the middle", []string{"1", "2", "slow(2-4)", "5", "6", "7", "8"}},
		{"two gaps in a row", []string{"slow(0-2)", "evicted(2-3)", "4", "5", "6", "7", "8"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			court := newCourt(t)
			court.published("e1", 1, 8, 0)
			court.saw(court.subscriber(), 1000, c.saw...)
			require.Empty(t, court.judge(), court.ledger.faults.kept)
		})
	}
}

// Every promise, broken.
func TestEachKindOfFaultIsFound(t *testing.T) {
	for _, c := range []struct {
		name string
		saw  []string
		want Kind
	}{
		{"loss in the middle", []string{"1", "2", "4", "5", "6", "7", "8"}, Loss},
		{"loss at the beginning", []string{"2", "3", "4", "5", "6", "7", "8"}, Loss},
		{"loss at the end", []string{"1", "2", "3", "4", "5", "6", "7"}, Loss},
		{"loss of everything", nil, Loss},
		{"double", []string{"1", "2", "2", "3", "4", "5", "6", "7", "8"}, Double},
		{"double, later", []string{"1", "2", "3", "4", "5", "6", "7", "8", "3"}, Double},
		{"disorder", []string{"1", "3", "2", "4", "5", "6", "7", "8"}, Disorder},
		{"a gap that begins too early", []string{"1", "2", "slow(1-4)", "5", "6", "7", "8"}, GapRange},
		{"a gap that begins too late", []string{"1", "2", "slow(3-4)", "5", "6", "7", "8"}, GapRange},
		{"a gap that leads back", []string{"1", "2", "slow(2-1)", "3", "4", "5", "6", "7", "8"}, GapRange},
		{"a gap that ends too early", []string{"1", "slow(1-2)", "4", "5", "6", "7", "8"}, Loss},
		{"a gap over what is held", []string{"1", "2", "3", "4", "slow(4-6)", "7", "8"}, NeedlessGap},
		{"a gap and its messages, too", []string{"slow(0-4)", "3", "4", "5", "6", "7", "8"}, Disorder},
		{"expired too early", []string{"expired(0-4)", "5", "6", "7", "8"}, GapReason},
		{"deleted by nobody", []string{"deleted(0-4)", "5", "6", "7", "8"}, GapReason},
		{"conflated, which nobody asked for", []string{"conflated(0-4)", "5", "6", "7", "8"}, GapReason},
		{"restarted within an epoch", []string{"restarted(0-4)", "5", "6", "7", "8"}, RestartedMore},
	} {
		t.Run(c.name, func(t *testing.T) {
			court := newCourt(t)
			court.published("e1", 1, 8, 0)
			court.saw(court.subscriber(), 1000, c.saw...)
			require.Contains(t, court.judge(), string(c.want), court.ledger.faults.kept)
		})
	}
}

func TestExpiredIsForWhatIsOldEnough(t *testing.T) {
	for then, want := range map[int64]string{5000: string(NeedlessGap), 10_050: ""} {
		t.Run(fmt.Sprint(then), func(t *testing.T) {
			c := newCourt(t)
			c.published("e1", 1, 2, 0)
			s := c.subscriber()
			c.saw(s, then, "expired(0-2)")
			require.Equal(t, want, c.judge())
		})
	}
}

func TestAMessagesOwnLifeEndsBeforeTheHistorys(t *testing.T) {
	c := newCourt(t)
	id := newIdentity(0, 1, 0)
	for ; c.ledger.payloads.formOf(id).ttl == 0; id++ {
	}
	life := c.ledger.payloads.formOf(id).ttl.Milliseconds()
	c.ledger.accepted(id, wire.Published{Position: at("1"), Time: 0})
	late, early := c.subscriber(), c.subscriber()
	c.saw(late, life, "expired(0-1)")
	require.Empty(t, func() string { c.trails = c.trails[:1]; return c.judge() }())
	c.trails = []*trail{early}
	c.saw(early, life/2-slackMS, "expired(0-1)")
	require.Equal(t, string(NeedlessGap), c.judge())
}

// Over a change of epochs.
func TestRestarts(t *testing.T) {
	for _, c := range []struct {
		name string
		saw  []string
		want Kind
	}{
		{"right", []string{"1", "2", "restarted(2-e2:0)", "e2:1", "e2:2"}, ""},
		{"what was in flight is covered", []string{"1", "restarted(1-e2:0)", "e2:1", "e2:2"}, ""},
		{"none", []string{"1", "2", "e2:1", "e2:2"}, NotRestarted},
		{"never", []string{"1", "2"}, NotRestarted},
		{"twice", []string{"1", "2", "restarted(2-e2:0)", "restarted(2-e2:0)", "e2:1", "e2:2"}, RestartedMore},
		{"twice, the second within the epoch", []string{"1", "2", "restarted(2-e2:0)", "restarted(e2:0-e2:0)", "e2:1", "e2:2"}, RestartedMore},
		{"by another reason", []string{"1", "2", "slow(2-e2:0)", "e2:1", "e2:2"}, NotRestarted},
		{"from elsewhere", []string{"1", "2", "restarted(1-e2:0)", "e2:1", "e2:2"}, GapRange},
		{"over what is held", []string{"1", "2", "restarted(2-e2:1)", "e2:2"}, NeedlessGap},
		{"and then a loss", []string{"1", "2", "restarted(2-e2:0)", "e2:2"}, Loss},
		{"and back", []string{"1", "2", "restarted(2-e2:0)", "e2:1", "e2:2", "restarted(e2:2-3)"}, Epoch},
	} {
		t.Run(c.name, func(t *testing.T) {
			court := newCourt(t)
			court.published("e1", 1, 2, 0)
			court.published("e2", 1, 2, 500)
			court.saw(court.subscriber(), 1000, c.saw...)
			if got := court.judge(); c.want == "" {
				require.Empty(t, got, court.ledger.faults.kept)
			} else {
				require.Contains(t, got, string(c.want), court.ledger.faults.kept)
			}
		})
	}
}

// A topic that was forgotten and made again numbers on, and announces a gap
// needlessly; but not while something was held.
func TestAForgottenTopicMayAnnounceAGapNeedlessly(t *testing.T) {
	for then, want := range map[int64]string{11_000: "", 5000: string(NeedlessGap)} {
		t.Run(fmt.Sprint(then), func(t *testing.T) {
			c := newCourt(t)
			c.published("e1", 1, 1, 0)
			c.published("e1", 9, 9, then)
			c.saw(c.subscriber(), then+10, "1", "evicted(1-8)", "9")
			require.Equal(t, want, c.judge(), c.ledger.faults.kept)
		})
	}
}

// A deletion empties the history and takes an offset of its own.
func TestADeletedTopic(t *testing.T) {
	c := newCourt(t)
	c.published("e1", 1, 2, 0)
	c.ledger.asked(0, 500, 510)
	c.published("e1", 4, 4, 900)
	c.saw(c.subscriber(), 950, "deleted(0-3)", "4")
	c.saw(c.subscriber(), 950, "1", "2", "deleted(2-3)", "4")
	require.Empty(t, c.judge(), c.ledger.faults.kept)
	c.saw(c.subscriber(), 950, "deleted(0-4)")
	require.Equal(t, string(NeedlessGap), c.judge())
}

// Who begins after a deletion was answered gets nothing from before it.
func TestADeletedMessageThatComesAgainIsFound(t *testing.T) {
	for _, c := range []struct {
		name        string
		done        bool
		asked, told int64
		want        string
	}{
		{"later", true, 700, 700, string(Undeleted)},
		{"before", true, 400, 400, ""},
		{"before, and was answered later", true, 400, 700, ""},
		{"the answer was lost", false, 700, 700, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			court := newCourt(t)
			court.published("e1", 1, 2, 0)
			court.ledger.asked(0, 500, 510)(510, c.done)
			s := newTrail(court.ledger, "s", wire.StartAfter(at("0")), at("0"), time.UnixMilli(c.asked), time.UnixMilli(c.told))
			court.trails = append(court.trails, s)
			court.saw(s, 950, "1", "2")
			require.Equal(t, c.want, court.judge(), court.ledger.faults.kept)
		})
	}
}

func TestWhereASubscriptionBeginsIsJudged(t *testing.T) {
	begin := func(c *court, from wire.From, answered string, told int64) {
		t := newTrail(c.ledger, "s", wire.Start{Topic: "a", From: from}, at(answered), time.UnixMilli(told), time.UnixMilli(told))
		t.leave()
		c.trails = append(c.trails, t)
	}
	for _, c := range []struct {
		name     string
		from     wire.From
		answered string
		told     int64
		want     string
	}{
		{"now", wire.FromNow, "8", 200, ""},
		{"now, of a while ago", wire.FromNow, "5", 200, ""},
		{"now, ahead of what there was", wire.FromNow, "8", -100, string(Loss)},
		{"the oldest", wire.FromOldest, "4", 200, ""},
		{"not the oldest", wire.FromOldest, "5", 200, string(Loss)},
	} {
		t.Run(c.name, func(t *testing.T) {
			court := newCourt(t)
			court.published("e1", 1, 8, 0)
			begin(court, c.from, c.answered, c.told)
			require.Equal(t, c.want, court.judge())
		})
	}
}

func TestASubscriberThatLeftMissesNothing(t *testing.T) {
	c := newCourt(t)
	c.published("e1", 1, 8, 0)
	s := c.subscriber()
	c.saw(s, 100, "1", "2")
	s.leave()
	require.Empty(t, c.judge())
}

func TestAPositionOtherThanAskedForIsAFault(t *testing.T) {
	c := newCourt(t)
	newTrail(c.ledger, "s", wire.StartAfter(at("2")), at("3"), time.UnixMilli(0), time.UnixMilli(0))
	require.Equal(t, string(Protocol), c.judge())
}

// A subscriber that leaves out its own messages is told that its position moves past them. That hides
// no loss of others.
func TestMovedPositionsHideNoLoss(t *testing.T) {
	for own, want := range map[int]string{0: "", 1: string(Loss), noOwn: string(Protocol) + ", " + string(Loss)} {
		t.Run(fmt.Sprint(own), func(t *testing.T) {
			c := newCourt(t)
			c.published("e1", 1, 8, 0) // by 0
			s := c.subscriber()
			s.own = own
			s.moved(at("8"), 1000)
			s.moved(at("5"), 1000)
			s.moved(at("e2:9"), 1000)
			require.Equal(t, at("8"), s.position())
			if own == noOwn {
				want = strings.Repeat(string(Protocol)+", ", 2) + want
			}
			require.Equal(t, want, c.judge(), c.ledger.faults.kept)
		})
	}
}

// A gap may begin at a moved position, also if the frame with it was lost.
func TestAGapBeginsAtAMovedPosition(t *testing.T) {
	for _, told := range []bool{true, false} {
		c := newCourt(t)
		c.published("e1", 1, 8, 0)
		s := c.subscriber()
		s.own = 0
		if told {
			s.moved(at("2"), 900)
		}
		c.saw(s, 1000, "evicted(2-4)")
		require.Empty(t, c.judge(), c.ledger.faults.kept)
	}
	c := newCourt(t)
	c.published("e1", 1, 8, 0)
	c.saw(c.subscriber(), 1000, "evicted(2-4)", "5", "6", "7", "8")
	require.Equal(t, string(GapRange), c.judge(), "it gets its own messages")
}

// A message that was had and comes again as a gap must have been lost by then.
func TestARepeatedMessageBecomesAGapOnlyWhenItIsLost(t *testing.T) {
	for offset, want := range map[uint64]string{3: "", 6: string(NeedlessGap)} {
		t.Run(fmt.Sprint(offset), func(t *testing.T) {
			c := newCourt(t)
			c.published("e1", 1, 8, 0)
			s := c.subscriber()
			c.saw(s, 100, "1", "2", "3", "4", "5", "6", "7", "8")
			p := at(fmt.Sprint(offset))
			s.became(&wire.Gap{Topic: "a", Reason: wire.GapEvicted, After: at(fmt.Sprint(offset - 1)), Position: p}, time.UnixMilli(200))
			require.Equal(t, want, c.judge())
		})
	}
}

// Who does not want its own messages misses none of them, and gets none.
func TestOwnMessagesDoNotComeBack(t *testing.T) {
	c := newCourt(t)
	c.published("e1", 1, 4, 0)
	s := c.subscriber()
	s.own = 0 // who published all of them
	require.Empty(t, c.judge())
	c.saw(s, 100, "2")
	require.Equal(t, string(Echo), c.judge())
}

// A gap begins at the last frame that a subscriber has, and so covers its own
// messages, too, that were passed over.
func TestAGapMayCoverOwnMessages(t *testing.T) {
	c := newCourt(t)
	c.published("e1", 1, 2, 0)
	id := newIdentity(0, 7, 0)
	for ; c.ledger.payloads.formOf(id).ttl == 0; id++ {
	}
	c.ledger.accepted(id, wire.Published{Position: at("3"), Time: 20})
	s := c.subscriber()
	s.own = 0
	c.saw(s, 5000, "expired(0-3)")
	require.Empty(t, c.judge(), c.ledger.faults.kept)
	s.own = noOwn
	require.Equal(t, string(NeedlessGap), c.judge())
}
