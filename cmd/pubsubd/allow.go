package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/pubsubd/pubsubd/internal/auth"
)

// allowUsage is the help of --allow.
const allowUsage = "grant `RIGHTS:TOPICS`, such as publish,delete:prices.>,news; repeatable"

// parseAllow returns the rights of some --allow as JSON, in the form of a token's claim pubsub.
// The error is a usage error.
func parseAllow(texts []string, subject string) ([]byte, error) {
	type entry struct {
		Topics []string `json:"topics"`
		Allow  []string `json:"allow"`
	}
	entries := []entry{}
	for _, text := range texts {
		rights, topics, ok := strings.Cut(text, ":")
		if !ok {
			return nil, usageError{fmt.Errorf("--allow %q: write rights, a colon and topics, such as publish,history:prices.>,news", text)}
		}
		entries = append(entries, entry{strings.Split(topics, ","), strings.Split(rights, ",")})
	}
	var claim bytes.Buffer
	enc := json.NewEncoder(&claim)
	enc.SetEscapeHTML(false) // prices.> stays readable
	if err := enc.Encode(entries); err != nil {
		return nil, err
	}
	if _, err := auth.ParseRights(claim.Bytes(), subject); err != nil {
		return nil, usageError{fmt.Errorf("--allow: %w", err)}
	}
	return claim.Bytes(), nil
}

// showRights writes rights as --allow reads them.
func showRights(claim []byte) string {
	var entries []struct{ Topics, Allow []string }
	if json.Unmarshal(claim, &entries) != nil {
		return string(claim)
	}
	texts := make([]string, len(entries))
	for i, e := range entries {
		texts[i] = strings.Join(e.Allow, ",") + ":" + strings.Join(e.Topics, ",")
	}
	return strings.Join(texts, " ")
}
