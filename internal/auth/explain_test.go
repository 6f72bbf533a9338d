package auth

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRightsAreExplained(t *testing.T) {
	rs := must(ParseRights([]byte(`[{"topics":["chat.>","news"],"allow":["subscribe"]},{"topics":["chat.admin.*","inbox.$sub"],"allow":["publish","presence"]}]`), "alice"))
	for _, tt := range []struct {
		right   Right
		name    string
		allowed bool
		why     string
	}{
		{Subscribe, "chat.1", true, `The entry "subscribe on chat.>, news" allows it, by the name "chat.>".`},
		{Publish, "inbox.alice", true, `by the name "inbox.alice".`},
		{Publish, "chat.1", false, `The entry "subscribe on chat.>, news" comes closest: "chat.>" includes it, but the right publish is missing.`},
		{Publish, "chat.admin.x.y", false, `"chat.>" includes it, but the right publish is missing.`},
		{Publish, "inbox.bob", false, `"inbox.alice" does not include "inbox.bob".`},
		{Publish, "chat.*.x", false, `"chat.>" includes it, but the right publish is missing.`},
		{Subscribe, ">", false, `does not include ">", and one name must cover the whole pattern.`},
		{Delete, "orders", false, `does not include "orders", and the right delete is missing.`},
		{Subscribe, "_presence.chat.admin.x", true, `This topic needs the right presence on "chat.admin.x". The entry "publish, presence on chat.admin.*, inbox.alice" allows it`},
	} {
		allowed, why, err := rs.Explain(tt.right, tt.name)
		require.NoError(t, err)
		require.Equal(t, tt.allowed, allowed, tt.name)
		require.Equal(t, rs.allow(tt.right, tt.name), allowed, "as the daemon decides")
		require.Contains(t, why, tt.why)
	}
	_, why, err := Rights{}.Explain(Publish, "a")
	require.NoError(t, err)
	require.Equal(t, "No entry grants anything.", why)
	_, _, err = rs.Explain("fly", "a")
	require.ErrorContains(t, err, "the rights are")
	_, _, err = rs.Explain(Publish, "a..b")
	require.ErrorContains(t, err, "empty segment")
}
