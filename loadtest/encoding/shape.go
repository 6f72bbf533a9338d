package encoding

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
)

// A shape is a kind of message of the size table. Its value is encoded and decoded
// by the same type.
type shape struct {
	name  string
	value any
	fresh func() any // a pointer to decode into
}

func shapeOf[T any](name string, value T) shape {
	return shape{name, value, func() any { return new(T) }}
}

// Sizes of the shapes.
const (
	longText   = 10_000 // characters
	manyValues = 1000
	manyItems  = 100
	deep       = 30
)

// shapes are the article's, and the experiment's own arrays.
func shapes(seed uint64) []shape {
	r := newRandom(seed, -1)
	return []shape{
		shapeOf(fmt.Sprintf("a string of %d characters", longText), prose(r, longText)),
		shapeOf(fmt.Sprintf("%d integers below a million", manyValues), repeat(manyValues, func() int { return r.IntN(1_000_000) })),
		shapeOf(fmt.Sprintf("%d prices", manyValues), repeat(manyValues, func() float64 { return price(r) })),
		shapeOf(fmt.Sprintf("%d objects of 1 member", manyItems), repeat(manyItems, func() lone { return lone{r.IntN(1_000_000)} })),
		shapeOf(fmt.Sprintf("%d objects of 5 members", manyItems), repeat(manyItems, func() five { return newFive(r) })),
		shapeOf(fmt.Sprintf("%d objects of 20 members", manyItems), repeat(manyItems, func() twenty { return newTwenty(r) })),
		shapeOf(fmt.Sprintf("objects nested %d deep", deep), newNode(r, deep)),
		shapeOf("20 objects of the experiment", newObjects(r, 20)),
		shapeOf("100 objects of the experiment", newObjects(r, 100)),
	}
}

type lone struct {
	ID int `json:"id"`
}

type five struct {
	ID     int     `json:"id"`
	Name   string  `json:"name"`
	Price  float64 `json:"price"`
	Open   bool    `json:"open"`
	Volume int     `json:"volume"`
}

// A twenty has four of all that a five has.
type twenty struct {
	five
	BidID      int     `json:"bidId"`
	BidName    string  `json:"bidName"`
	BidPrice   float64 `json:"bidPrice"`
	BidOpen    bool    `json:"bidOpen"`
	BidVolume  int     `json:"bidVolume"`
	AskID      int     `json:"askId"`
	AskName    string  `json:"askName"`
	AskPrice   float64 `json:"askPrice"`
	AskOpen    bool    `json:"askOpen"`
	AskVolume  int     `json:"askVolume"`
	LastID     int     `json:"lastId"`
	LastName   string  `json:"lastName"`
	LastPrice  float64 `json:"lastPrice"`
	LastOpen   bool    `json:"lastOpen"`
	LastVolume int     `json:"lastVolume"`
}

// A node has at most one node in it.
type node struct {
	Name  string `json:"name"`
	Value int    `json:"value"`
	Child *node  `json:"child,omitempty"`
}

func newFive(r *rand.Rand) five {
	o := newObject(r)
	return five{ID: r.IntN(1_000_000), Name: o.Name, Price: o.Price, Open: o.Open, Volume: o.Volume}
}

func newTwenty(r *rand.Rand) twenty {
	bid, ask, last := newFive(r), newFive(r), newFive(r)
	return twenty{
		newFive(r),
		bid.ID, bid.Name, bid.Price, bid.Open, bid.Volume,
		ask.ID, ask.Name, ask.Price, ask.Open, ask.Volume,
		last.ID, last.Name, last.Price, last.Open, last.Volume,
	}
}

func newNode(r *rand.Rand, depth int) node {
	n := node{Name: one(r, secondNames), Value: r.IntN(1_000_000)}
	if depth > 1 {
		child := newNode(r, depth-1)
		n.Child = &child
	}
	return n
}

func repeat[T any](n int, value func() T) []T {
	all := make([]T, n)
	for i := range all {
		all[i] = value()
	}
	return all
}

// prose returns sentences of names and figures, with line ends and quotes now and
// then, as text has.
func prose(r *rand.Rand, characters int) string {
	var b strings.Builder
	for b.Len() < characters {
		o := newObject(r)
		fmt.Fprintf(&b, "On %s, %s of %s sold %d shares at %.2f in %s; \"%s\" was the word.\n", o.Traded.Format("2 January"),
			o.Name, one(r, []string{"old", "late", "good repute", "no fame"}), o.Volume, o.Price, o.Market.City, one(r, firstNames))
	}
	return strings.ToValidUTF8(b.String()[:characters], ".") // a letter may have been cut
}

// same reports whether two values are written alike: what was decoded is what was
// encoded.
func same(a, b any) bool {
	x, errX := json.Marshal(a)
	y, errY := json.Marshal(b)
	return errX == nil && errY == nil && string(x) == string(y)
}
