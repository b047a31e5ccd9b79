package cliview

import (
	"cmp"
	"fmt"
	"strings"

	"meshrelay/admin/view"
)

// maxMarkdown bounds a plan in Markdown, in bytes. A comment on GitHub has 65,536 characters at most.
const maxMarkdown = 60_000

// PlanMarkdown returns the shown ones of all changes as a comment on a pull request: a sentence, a table
// and, with diffs, each difference folded. It cuts what gets too long, and tells how much that is.
func PlanMarkdown(c view.Changes, diffs view.Diffs, shown []view.Change) string {
	if len(c.Changes) == 0 {
		return "**Nothing would change** in what the relay serves.\n"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "**%d to add, %d to change, %d to remove** in what the relay serves.\n\n", c.Added, c.Changed, c.Removed)
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

// markdownDiffs adds the differences for which there is room.
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
		fmt.Fprintf(b, "\nLeft out: %s. `relay plan --diff --limit 0` has all.\n", view.Count(left, "more difference"))
	}
}

// markdownCell returns a text of others for a cell of a table: as code, so that nothing in it is a link, a
// mention or a tag.
func markdownCell(text string) string {
	text = strings.NewReplacer("|", `\|`, "`", "'").Replace(Clean(cmp.Or(text, none)))
	if text == none {
		return text
	}
	return "`" + text + "`"
}

// htmlText returns a text of others for an element of HTML in Markdown.
func htmlText(text string) string {
	return "<code>" + strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", "`", "'", "*", "&#42;", "_", "&#95;", "[", "&#91;", "@", "&#64;").Replace(Clean(text)) + "</code>"
}

// longestRun returns how often a byte stands in a row at most.
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
