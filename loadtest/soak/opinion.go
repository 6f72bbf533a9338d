package soak

import (
	"fmt"
	"math/rand/v2"
	"time"
)

// An opinion is what the application behind the publish hook has of a message. It is
// drawn from the message's identity, so that its publisher and the judge know it
// without asking.
type opinion uint8

const (
	lets     opinion = iota // it goes as it is
	changes                 // it goes with another payload, type and ttl
	refuses                 // it does not go, and its publisher is told why
	fails                   // it has an error, and lets it go when it is asked again
	dawdles                 // the same, with an answer for which the daemon does not wait
	opinions                // how many there are
)

var opinionNames = [opinions]string{"let pass", "changed", "refused", "failed at", "was late with"}

// consents reports whether the message is published.
func (o opinion) consents() bool { return o == lets || o == changes }

// again is what is said of a message that is asked about again, since the hook failed.
func (o opinion) again() opinion {
	if o == fails || o == dawdles {
		return lets
	}
	return o
}

// hooked reports whether the application is asked about the messages of a topic. They
// are few: a setting that names them holds 100.
func hooked(topic int) bool { return topic%hookedEvery == hookedFirst }

const (
	hookedEvery = 13
	hookedFirst = 4
)

// opinionOf returns what the application says of a message, and for how long it thinks:
// mostly not at all.
func (p *payloads) opinionOf(id identity) (o opinion, thinks time.Duration) {
	if !hooked(id.topic()) || id.publisher() == probePublisher {
		return lets, 0
	}
	if isHurried(id.publisher()) {
		return lets, hurriedThinks
	}
	rng := rand.New(rand.NewPCG(p.seed+1, uint64(id)))
	switch draw := rng.IntN(1000); {
	case draw < 300:
		o = changes
	case draw < 400:
		o = refuses
	case draw < 405:
		o = fails
	case draw < 408: // few: a publisher does nothing else meanwhile
		return dawdles, 2 * hookTimeout
	}
	switch draw := rng.IntN(100); {
	case draw < 5:
		thinks = time.Duration(50+rng.IntN(150)) * time.Millisecond
	case draw < 30:
		thinks = time.Duration(rng.IntN(20)) * time.Millisecond
	}
	return o, thinks
}

// refusal is what the publisher of a message that is refused is told.
func refusal(id identity) string { return fmt.Sprintf("the soak refuses %v", id) }
