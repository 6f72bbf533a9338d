package soak

import (
	"math"
	"math/rand/v2"
	"time"
)

// A misfortune is what happens to a connection.
type misfortune uint8

const (
	noMisfortune misfortune = iota
	closed                  // both sides are closed in order
	reset                   // both sides are reset
	halfClosed              // one direction ends, and the other a while later
	delayed                 // nothing passes for a while
	stalled                 // nothing passes for longer, and then it is cut
	trickled                // a while, in small pieces
	misfortunes             // how many there are
)

var misfortuneNames = [misfortunes]string{"none", "closed", "reset", "half closed", "delayed", "stalled", "trickled"}

// ends reports whether the connection does not survive it.
func (m misfortune) ends() bool {
	return m == closed || m == reset || m == halfClosed || m == stalled
}

// A fate is what happens to a connection after so many bytes in one direction.
type fate struct {
	what   misfortune
	toward direction
	after  int64 // bytes
	lasts  time.Duration
	narrow bool // small buffers: who reads late is felt at the other end
}

type direction uint8

const (
	up   direction = iota // from the client to the daemon
	down                  // from the daemon to the client
)

// mostBeforeFate bounds the bytes that pass before something happens. The number is
// drawn so that every order of magnitude is as likely as the next: within a request
// line, a head, a frame, an answer.
const mostBeforeFate = 300_000

func drawFate(rng *rand.Rand) fate {
	f := fate{
		toward: direction(rng.IntN(2)),
		after:  int64(math.Exp(rng.Float64() * math.Log(mostBeforeFate))),
		lasts:  time.Duration(10+rng.IntN(1500)) * time.Millisecond,
		narrow: rng.IntN(4) == 0,
	}
	switch draw := rng.IntN(100); {
	case draw < 40:
		f.what = noMisfortune
	case draw < 52:
		f.what = closed
	case draw < 66:
		f.what = reset
	case draw < 75:
		f.what = halfClosed
	case draw < 88:
		f.what = delayed
	case draw < 92:
		f.what, f.lasts = stalled, 3*f.lasts
	default:
		f.what = trickled
	}
	if f.toward == up { // far less goes up
		f.after = int64(math.Sqrt(float64(f.after)) * 10)
	}
	return f
}
