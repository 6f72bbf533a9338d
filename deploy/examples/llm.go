package main

import (
	"crypto/rand"
	_ "embed"
	"net/http"
	"regexp"
	"strconv"
	"time"
)

//go:embed llm.txt
var text string

// ask starts a simulated model, and sends the browser to the page of its answer.
func (b *backend) ask(w http.ResponseWriter, r *http.Request) {
	answer := b.newJournal("answer." + rand.Text())
	go generate(answer, r.FormValue("question"))
	http.Redirect(w, r, "llm.html?"+answer.topic, http.StatusSeeOther)
}

// generate adds the question, 50 tokens a second, and an empty token as the end.
func generate(answer *journal, question string) {
	answer.add("question", question)
	tick := time.NewTicker(time.Second / 50)
	defer tick.Stop()
	tokens := regexp.MustCompile(`\s*\S{1,4}`).FindAllString(text, -1)
	for n, token := range append(tokens, "") {
		<-tick.C
		answer.add(strconv.Itoa(n), token)
	}
}
