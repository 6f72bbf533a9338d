package encoding

import (
	"fmt"
	"math/rand/v2"
	"time"
)

// An Object is what the messages are arrays of: one member of each type that web
// services mostly have, and a nested object. Objects are comparable.
type Object struct {
	Name   string    `json:"name"`
	Volume int       `json:"volume"`
	Price  float64   `json:"price"` // decimal, with cents
	Open   bool      `json:"open"`
	Traded time.Time `json:"traded"` // RFC 3339, in UTC
	Market Market    `json:"market"`
}

// A Market is an Object's nested object.
type Market struct {
	City string `json:"city"`
	Code string `json:"code"`
	Rank int    `json:"rank"`
}

var (
	firstNames  = []string{"Alder", "Birch", "Cedar", "Dogwood", "Elm", "Fir", "Ginkgo", "Hazel", "Ironwood", "Juniper", "Kauri", "Larch"}
	secondNames = []string{"Bearings", "Foods", "Holdings", "Insurance", "Logistics", "Mining", "Paper", "Shipping", "Telecom", "Textiles", "Tools", "Water"}
	markets     = []Market{
		{"Amsterdam", "XAMS", 1}, {"Frankfurt", "XFRA", 2}, {"Hong Kong", "XHKG", 3}, {"London", "XLON", 4},
		{"New York", "XNYS", 5}, {"São Paulo", "BVMF", 6}, {"Tokyo", "XTKS", 7}, {"Toronto", "XTSE", 8},
	}
	firstTrade = time.Date(2026, time.January, 2, 9, 0, 0, 0, time.UTC)
)

// newRandom returns the source of one client's contents: the same seed makes the
// same.
func newRandom(seed uint64, client int) *rand.Rand {
	return rand.New(rand.NewPCG(seed, uint64(client)))
}

// newObjects returns n objects, each with contents of its own.
func newObjects(r *rand.Rand, n int) []Object {
	objects := make([]Object, n)
	for i := range objects {
		objects[i] = newObject(r)
	}
	return objects
}

func newObject(r *rand.Rand) Object {
	market := markets[r.IntN(len(markets))]
	market.Rank = 1 + r.IntN(500)
	return Object{
		Name:   fmt.Sprintf("%s %s", one(r, firstNames), one(r, secondNames)),
		Volume: r.IntN(1_000_000),
		Price:  price(r),
		Open:   r.IntN(2) == 0,
		Traded: firstTrade.Add(time.Duration(r.IntN(90*24*3600)) * time.Second),
		Market: market,
	}
}

// price is between 1.00 and 999.99.
func price(r *rand.Rand) float64 { return float64(100+r.IntN(99_900)) / 100 }

func one(r *rand.Rand, of []string) string { return of[r.IntN(len(of))] }
