package cliview

import (
	"cmp"
	"fmt"
	"strings"

	"meshrelay/admin/view"
	"meshrelay/downstream"
)

// maxMarkdown bounds a plan in Markdown, in bytes. GitHub allows 65,536 characters in a comment.
const maxMarkdown = 60_000

// PlanMarkdown returns a plan as a comment on a pull request: a summary of all changes, a table of the shown
// ones and, with diffs, their folded differences, and a table of the clients. It leaves out what exceeds maxMarkdown, and counts it.
func PlanMarkdown(c view.Changes, diffs view.Diffs, shown []view.Change) string {
	out := markdownChanges(c, diffs, shown)
	return out + markdownClients(c.Clients, maxMarkdown-len(out))
}

// markdownChanges returns the resources of a plan.
func markdownChanges(c view.Changes, diffs view.Diffs, shown []view.Change) string {
	var b strings.Builder
	if len(c.Changes) == 0 {
		return "**Nothing would change** in the resources that the relay serves.\n"
	}
	fmt.Fprintf(&b, "**%d to add, %d to change, %d to remove** in the resources that the relay serves.\n\n", c.Added, c.Changed, c.Removed)
	b.WriteString("| Action | Kind | Namespace | Name | From | To |\n| --- | --- | --- | --- | --- | --- |\n")
	rows := 0
	for _, change := range shown {
		row := "| " + change.Action
		for _, cell := range []string{change.Kind, change.Namespace, change.Name, change.From, change.To} {
			row += " | " + markdownCell(cell)
		}
		if row += " |\n"; b.Len()+len(row) > maxMarkdown {
			break
		}
		b.WriteString(row)
		rows++
	}
	if left := len(c.Changes) - rows; left > 0 {
		fmt.Fprintf(&b, "\nLeft out: %s. `relay plan --limit 0` lists all.\n", view.Count(left, "more change"))
	}
	if diffs != view.NoDiffs {
		markdownDiffs(&b, shown)
	}
	return b.String()
}

// markdownClients returns a table of the clients that a plan gives another rule or view, in at most room bytes.
func markdownClients(changes []downstream.ClientChange, room int) string {
	if len(changes) == 0 {
		return ""
	}
	b := "\n| Client | Identity | Now | Planned | Gains | Loses |\n| --- | --- | --- | --- | --- | --- |\n"
	for i, c := range changes {
		row := ""
		for _, cell := range clientChange(c) {
			row += "| " + markdownCell(fmt.Sprint(cell)) + " "
		}
		if len(b)+len(row) > room-100 {
			return b + fmt.Sprintf("\nLeft out: %s.\n", view.Count(len(changes)-i, "more client"))
		}
		b += row + "|\n"
	}
	return b
}

// markdownDiffs adds differences until maxMarkdown is reached.
func markdownDiffs(b *strings.Builder, shown []view.Change) {
	left := 0
	for _, change := range shown {
		if left > 0 {
			left++
			continue
		}
		name := change.Kind + " " + change.Namespace + "/" + change.Name
		text := CleanLines(strings.TrimPrefix(view.Difference("now "+name, change.Old, "planned "+name, change.New), "\n"))
		fence := strings.Repeat("`", max(3, longestRun(text, '`')+1))
		part := fmt.Sprintf("\n<details><summary>%s %s</summary>\n\n%sdiff\n%s%[3]s\n\n</details>\n", change.Action, htmlText(name), fence, text)
		if b.Len()+len(part) > maxMarkdown {
			left++
			continue
		}
		b.WriteString(part)
	}
	if left > 0 {
		fmt.Fprintf(b, "\nLeft out: %s. `relay plan --diff --limit 0` lists all.\n", view.Count(left, "more difference"))
	}
}

// markdownCell returns an untrusted text as a table cell: as code, so that it contains no link, mention or tag.
func markdownCell(text string) string {
	text = strings.NewReplacer("|", `\|`, "`", "'").Replace(Clean(cmp.Or(text, none)))
	if text == none {
		return text
	}
	return "`" + text + "`"
}

// htmlText returns an untrusted text as an HTML element in Markdown.
func htmlText(text string) string {
	return "<code>" + strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", "`", "'", "*", "&#42;", "_", "&#95;", "[", "&#91;", "@", "&#64;").Replace(Clean(text)) + "</code>"
}

// longestRun returns the length of the longest run of c in text.
func longestRun(text string, c byte) (most int) {
	run := 0
	for i := range len(text) {
		if run++; text[i] != c {
			run = 0
		}
		most = max(most, run)
	}
	return most
}
