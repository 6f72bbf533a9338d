package loadtest

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pubsubd/pubsubd/pkg/wire"
)

func position(offset int) wire.Position {
	return wire.Position{Topic: "a", Epoch: "k3", Offset: uint64(offset)}
}

// oneClient is a verifier with one client that begins at offset 10, of a topic
// on which every message was published.
func oneClient(messages int) *verifier {
	v := newVerifier(shape{topics: 1, perTopic: 1, messages: messages}, true)
	v.begin(0, position(10))
	for n := range messages {
		v.publish(0, n)
	}
	return v
}

// Any subset of the messages, any of them doubled, in any order: the account is
// that of a plain reading of the whole list.
func TestVerifierAgreesWithAPlainReading(t *testing.T) {
	for seed := range uint64(500) {
		random := rand.New(rand.NewPCG(seed, 1))
		const messages = 40
		v := oneClient(messages)
		var came []int
		for n := range messages {
			for range []int{1, 1, 1, 1, 1, 1, 0, 2}[random.IntN(8)] {
				came = append(came, n)
			}
		}
		for range random.IntN(4) {
			random.Shuffle(len(came), func(i, j int) {
				if i-j < 5 && j-i < 5 {
					came[i], came[j] = came[j], came[i]
				}
			})
		}
		want := Deliveries{Expected: messages, Gaps: map[string]int64{}}
		had, highest := map[int]bool{}, -1
		for _, n := range came {
			switch {
			case had[n]:
				want.Duplicates++
			case n < highest:
				want.Disordered++
			}
			had[n], highest = true, max(highest, n)
			v.message(0, n, position(11+n))
		}
		want.Delivered, want.Lost = int64(len(had)), messages-int64(len(had))
		require.Equal(t, want, v.result(), "seed %d: %v", seed, came)
	}
}

func TestAMessageFromBeforeTheSubscriptionIsADuplicate(t *testing.T) {
	v := oneClient(3)
	require.False(t, v.message(0, 0, position(10)))
	require.EqualValues(t, 1, v.result().Duplicates)
}

func TestAMessageFromLongAgoIsOutOfOrder(t *testing.T) {
	v := oneClient(200)
	v.message(0, 150, position(160))
	require.True(t, v.message(0, 20, position(30)))
	require.EqualValues(t, 1, v.result().Disordered)
}

func TestOffsetsNeedNotBeDense(t *testing.T) {
	v := oneClient(3)
	for n := range 3 {
		require.True(t, v.message(0, n, position(11+1000*n)))
	}
	require.Equal(t, Deliveries{Expected: 3, Delivered: 3, Gaps: map[string]int64{}}, v.result())
}

func TestGapsMoveOn(t *testing.T) {
	v := oneClient(10)
	v.gap(0, &wire.Gap{Reason: wire.GapSlow, After: position(10), Position: position(15)})
	require.True(t, v.message(0, 5, position(16)))
	v.gap(0, &wire.Gap{Reason: wire.GapRestarted, Position: wire.Position{Topic: "a", Epoch: "k4", Offset: 3}})
	require.True(t, v.message(0, 6, wire.Position{Topic: "a", Epoch: "k4", Offset: 4}))
	want := Deliveries{Expected: 10, Delivered: 2, Lost: 8, Gaps: map[string]int64{"slow": 1, "restarted": 1}}
	require.Equal(t, want, v.result(), "an announced epoch is not unexpected")

	v.gap(0, &wire.Gap{Reason: wire.GapSlow, Position: wire.Position{Topic: "a", Epoch: "k4", Offset: 2}})
	require.EqualValues(t, 1, v.result().Disordered, "a gap must not go back")
}

func TestARefusedPublishIsNotExpected(t *testing.T) {
	v := oneClient(2)
	v.refuse(0, 0)
	require.EqualValues(t, 1, v.result().Expected)
}

// What was refused and came nevertheless does not make up for a loss, whether it
// came before the refusal or after.
func TestSurplusIsNoDelivery(t *testing.T) {
	v := oneClient(3)
	require.True(t, v.message(0, 0, position(11)))
	v.refuse(0, 0)
	v.refuse(0, 1)
	require.False(t, v.message(0, 1, position(12)))
	require.Equal(t, Deliveries{Expected: 1, Lost: 1, Surplus: 2, Gaps: map[string]int64{}}, v.result())
}

// Two clients see rising offsets, one of them with the payloads swapped.
func TestAnotherOrderUnderRisingOffsetsIsDisorder(t *testing.T) {
	v := newVerifier(shape{topics: 1, perTopic: 2, messages: 2}, true)
	for n := range 2 {
		v.begin(n, position(10))
		v.publish(0, n)
	}
	v.message(0, 0, position(11))
	v.message(0, 1, position(12))
	require.Zero(t, v.result().Disordered)
	v.message(1, 1, position(11))
	v.message(1, 0, position(12))
	require.EqualValues(t, 2, v.result().Disordered)
}

// One client has nobody to disagree with but the publishes' answers.
func TestADeliveryAgreesWithThePublishsAnswer(t *testing.T) {
	v := oneClient(3)
	v.number(0, 0, position(11))
	v.message(0, 0, position(11))
	v.message(0, 1, position(12))
	v.number(0, 1, position(12))
	require.Zero(t, v.result().Disordered)
	v.message(0, 2, position(13))
	v.number(0, 2, position(14))
	require.EqualValues(t, 1, v.result().Disordered)
}

func TestOnlyPublishedMessagesAreKnown(t *testing.T) {
	v := newVerifier(shape{topics: 1, perTopic: 1, messages: 2}, true)
	v.publish(0, 1)
	require.True(t, v.knows(0, 1))
	require.False(t, v.knows(0, 0))
	require.False(t, v.knows(0, 2))
	require.False(t, v.knows(0, -1))
}
