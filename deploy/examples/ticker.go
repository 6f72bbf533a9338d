package main

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/pubsubd/pubsubd/pkg/pubsub"
)

// publishPrices publishes ten prices a second of each symbol, to prices.SYMBOL.
func publishPrices(push *pubsub.Client) {
	symbols := strings.Fields("ACME BOLT CORE DUNE ECHO FERN GALE HALO IRIS JADE KITE LIME MOSS NOVA OPAL PINE QUAY REEF SAGE TIDE URSA VALE WAVE ZINC")
	prices := map[string]float64{}
	for range time.Tick(100 * time.Millisecond) {
		var batch []pubsub.Publication
		for _, s := range symbols {
			prices[s] = cmp.Or(prices[s], 20+200*rand.Float64()) * (1 + 0.0007*rand.NormFloat64())
			batch = append(batch, pubsub.Publication{Topic: "prices." + s, Body: fmt.Appendf(nil, `{"price":%.2f}`, prices[s])})
		}
		// A price that could not be published is not repeated: a newer one replaces it.
		_, _ = push.PublishMany(context.Background(), batch)
	}
}
