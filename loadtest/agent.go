package loadtest

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"
)

// An Agent has some of the clients of tests that other processes coordinate, one
// test at a time; it is the http.Handler of the control protocol (control.go). Its
// methods may be called concurrently. Close it when its server is closed.
type Agent struct {
	token   [sha256.Size]byte
	open    bool // no token is wanted
	version string
	mux     *http.ServeMux

	patience time.Duration // immutable; without hearing a coordinator, its run is given up

	mu      sync.Mutex // guards the fields below
	run     string     // whose portion it is
	portion *portion   // nil: none
}

// NewAgent returns an agent that wants the token, or none if it is empty, of
// coordinators that are of the same version.
func NewAgent(token, version string) *Agent {
	a := &Agent{token: sha256.Sum256([]byte(token)), open: token == "", version: version, mux: http.NewServeMux(), patience: giveUpAfter}
	a.mux.HandleFunc("GET /v1/agent", a.hello)
	a.mux.HandleFunc("POST /v1/runs", a.begin)
	a.mux.HandleFunc("GET /v1/runs/{run}", a.with(a.status))
	a.mux.HandleFunc("POST /v1/runs/{run}/clock", a.with(a.clock))
	a.mux.HandleFunc("POST /v1/runs/{run}/start", a.with(a.start))
	a.mux.HandleFunc("POST /v1/runs/{run}/finish", a.with(a.finish))
	a.mux.HandleFunc("DELETE /v1/runs/{run}", a.with(a.abandon))
	return a
}

// Close ends what the agent is at.
func (a *Agent) Close() {
	a.mu.Lock()
	p := a.portion
	a.mu.Unlock()
	if p != nil {
		p.end()
	}
}

// ServeHTTP lets nobody in but who has the token, and no web page: a browser on
// this machine would reach an agent on loopback, and names its page's origin.
func (a *Agent) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	given, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	sum := sha256.Sum256([]byte(given)) // of equal length, so that comparing tells nothing of the token
	switch {
	case r.Header.Get("Origin") != "" || r.Header.Get("Sec-Fetch-Site") != "":
		refuse(w, http.StatusForbidden, errors.New("agents refuse requests of web pages"))
	case !a.open && subtle.ConstantTimeCompare(sum[:], a.token[:]) != 1:
		refuse(w, http.StatusUnauthorized, fmt.Errorf("wrong token: set the same $%s on both sides", AgentTokenVariable))
	default:
		r.Body = http.MaxBytesReader(w, r.Body, maxControl)
		a.mux.ServeHTTP(w, r)
	}
}

// maxControl bounds what is taken from the other side.
const maxControl = 256 << 20

func refuse(w http.ResponseWriter, status int, err error) {
	answer(w, status, controlError{err.Error()})
}

func answer(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // who went away does not want it
}

func (a *Agent) hello(w http.ResponseWriter, _ *http.Request) {
	limit, _ := raiseOpenFiles(2 * mostClients)
	a.mu.Lock()
	busy := a.busy()
	a.mu.Unlock()
	answer(w, http.StatusOK, agentHello{Control: controlVersion, Version: a.version, PID: os.Getpid(), OpenFiles: limit, Busy: busy})
}

// busy is called with mu held.
func (a *Agent) busy() bool {
	if a.portion == nil {
		return false
	}
	select {
	case <-a.portion.done:
		return false
	default:
		return true
	}
}

func (a *Agent) begin(w http.ResponseWriter, r *http.Request) {
	var o portionOrder
	if err := json.NewDecoder(r.Body).Decode(&o); err != nil || o.Run == "" {
		refuse(w, http.StatusBadRequest, fmt.Errorf("invalid order: %w", err))
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.busy() {
		refuse(w, http.StatusConflict, errors.New("the agent has another run: wait for its end, or start another agent"))
		return
	}
	p, err := startPortion(&o, a.patience)
	if err != nil {
		refuse(w, http.StatusBadRequest, err)
		return
	}
	a.run, a.portion = o.Run, p
	answer(w, http.StatusAccepted, p.status.Load())
}

// with finds the portion of the run that the request names.
func (a *Agent) with(do func(http.ResponseWriter, *http.Request, *portion)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		a.mu.Lock()
		p, run := a.portion, a.run
		a.mu.Unlock()
		if p == nil || run != r.PathValue("run") {
			refuse(w, http.StatusNotFound, errors.New("the agent has no such run: the run timed out, or the agent was restarted"))
			return
		}
		p.heard()
		do(w, r, p)
	}
}

func (a *Agent) status(w http.ResponseWriter, _ *http.Request, p *portion) {
	answer(w, http.StatusOK, p.status.Load())
}

func (a *Agent) clock(w http.ResponseWriter, _ *http.Request, p *portion) {
	answer(w, http.StatusOK, readClock(p.loop.Now))
}

func (a *Agent) start(w http.ResponseWriter, r *http.Request, p *portion) {
	var s portionStart
	if err := json.NewDecoder(r.Body).Decode(&s); err != nil || s.At <= 0 || !p.startAt.CompareAndSwap(0, int64(s.At)) {
		refuse(w, http.StatusBadRequest, errors.New("the run has started already, or the order has no time to start"))
		return
	}
	answer(w, http.StatusOK, p.status.Load())
}

// finishes bounds how long the loop may take to notice that it is over.
const finishes = 10 * time.Second

func (a *Agent) finish(w http.ResponseWriter, r *http.Request, p *portion) {
	var published portionPublished
	err := json.NewDecoder(r.Body).Decode(&published)
	if err == nil {
		err = published.check(p.shape)
	}
	if err != nil {
		refuse(w, http.StatusBadRequest, err)
		return
	}
	p.published.Store(&published)
	select {
	case <-p.done:
	case <-time.After(finishes):
		p.end()
	}
	if p.err != nil {
		refuse(w, http.StatusConflict, p.err)
		return
	}
	answer(w, http.StatusOK, &p.result)
}

func (a *Agent) abandon(w http.ResponseWriter, _ *http.Request, p *portion) {
	p.end()
	answer(w, http.StatusOK, p.status.Load())
}
