package cliview

// NotifyAnswer is what a receiver has answered to a test message.
type NotifyAnswer struct {
	Receiver string `json:"receiver"`
	Format   string `json:"format"`
	// Error is why the message was not taken, empty when it was.
	Error string `json:"error,omitempty"`
}

// NotifyAnswers returns the answers as a table.
func NotifyAnswers(all []NotifyAnswer) string {
	t := titled("RECEIVER", "FORMAT", "ANSWER")
	for _, a := range all {
		answer := "taken"
		if a.Error != "" {
			answer = "not taken: " + a.Error
		}
		t.add(a.Receiver, a.Format, answer)
	}
	return t.String()
}
