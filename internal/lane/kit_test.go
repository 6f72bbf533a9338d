package lane_test

import (
	"net/http"
	"testing"

	"github.com/pubsubd/pubsubd/internal/app"
	"github.com/pubsubd/pubsubd/internal/httpapi"
	"github.com/pubsubd/pubsubd/internal/lane"
	"github.com/pubsubd/pubsubd/internal/lane/lanetest"
)

// A kit is a lane: alone, or behind net/http, which reads the first request of each
// connection and what the lane hands back.
type kit struct{ *lanetest.Kit }

// newLaneKit returns a kit of a lane behind net/http.
func newLaneKit(t testing.TB, way lane.Way) *kit {
	return serveLane(t, way, lanetest.Settings{}, nil)
}

// serveLane is newLaneKit with settings, and with control for the sockets of both sides.
func serveLane(t testing.TB, way lane.Way, s lanetest.Settings, control lanetest.ControlFunc) *kit {
	return &kit{lanetest.Serve(t, way, s, control, func(p lanetest.Parts) (http.Handler, *lane.Lane) {
		api := httpapi.New(httpapi.Config{
			App: app.New(p.Config), Limiter: p.Limiter, Polls: p.Polls, Metrics: p.Metrics,
			Way: p.Lane, Origins: p.Origins, Hosts: p.Hosts, Log: p.Log,
		})
		return api, api.Lane
	})}
}

// newLane returns a kit of a lane alone: an app, a broker, and no net/http.
func newLane(t testing.TB, way lane.Way, origins ...string) *kit {
	return newLaneWith(t, way, lanetest.Settings{Origins: origins}, nil)
}

// newLaneWith is newLane with settings, and with control for the sockets of both sides.
func newLaneWith(t testing.TB, way lane.Way, s lanetest.Settings, control lanetest.ControlFunc) *kit {
	return &kit{lanetest.New(t, way, s, control, (*lane.Lane).Join)}
}
