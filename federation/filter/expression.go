package filter

import (
	"errors"
	"fmt"
	"strings"
	"sync"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"
	"cel.dev/cel-go/ext"

	"meshrelay/federation"
	"meshrelay/internal/text"
	"meshrelay/mirror"
)

const (
	// maxExpression bounds the text of an expression, in bytes, and maxNodes its syntax tree.
	maxExpression = 4 << 10
	maxNodes      = 4 << 10
	// maxParens bounds the nesting of an expression, and maxLoops that of its loops; a loop
	// over the result of another counts as nested.
	maxParens = 64
	maxLoops  = 8
	// maxRegexp bounds a compiled regular expression, in instructions.
	maxRegexp = 1000
	// maxCost bounds one evaluation, in CEL's units: some 100 ms at worst, and enough for
	// 20,000 endpoints. CEL could bound the memory too, but would look at all of spec each
	// time. The cost of an expression grows with the values that it builds.
	maxCost = 200_000
	// maxText bounds, in bytes, the text that an expression builds: CEL counts its cost only
	// afterwards.
	maxText = 1 << 20
	// maxMistakes bounds the reported mistakes of one expression.
	maxMistakes = 8
)

// environment returns the CEL environment. The first expression builds it: most relays have
// none.
var environment = sync.OnceValues(func() (*cel.Env, error) {
	text := cel.MapType(cel.StringType, cel.StringType)
	return cel.NewEnv(
		cel.Variable("kind", cel.StringType),
		cel.Variable("group", cel.StringType),
		cel.Variable(namespaceAlias, cel.StringType),
		cel.Variable("name", cel.StringType),
		cel.Variable("labels", text),
		cel.Variable("annotations", text),
		cel.Variable("spec", cel.MapType(cel.StringType, cel.DynType)),
		cel.OptionalTypes(), cel.CrossTypeNumericComparisons(true), cel.DefaultUTCTimeZone(true),
		ext.Strings(ext.StringsVersion(5)), ext.Sets(), ext.Network(), boundedReplace, boundedJoin, noFormat,
		cel.ParserRecursionLimit(maxParens), cel.ParserExpressionSizeLimit(maxExpression), cel.ExpressionNodeLimit(maxNodes),
		cel.RegexProgramSizeLimit(maxRegexp),
		cel.ASTValidators(cel.ValidateDurationLiterals(), cel.ValidateTimestampLiterals(), cel.ValidateRegexLiterals(),
			cel.ValidateComprehensionNestingLimit(maxLoops)),
	)
})

// These replace functions of ext.Strings whose result may be longer than their arguments by
// orders of magnitude.
var (
	boundedReplace = cel.Function("replace",
		cel.MemberOverload("string_replace_string_string", []*cel.Type{cel.StringType, cel.StringType, cel.StringType},
			cel.StringType, cel.FunctionBinding(replaceText)),
		cel.MemberOverload("string_replace_string_string_int", []*cel.Type{cel.StringType, cel.StringType, cel.StringType, cel.IntType},
			cel.StringType, cel.FunctionBinding(replaceText)))
	boundedJoin = cel.Function("join",
		cel.MemberOverload("list_join", []*cel.Type{cel.ListType(cel.StringType)},
			cel.StringType, cel.UnaryBinding(func(list ref.Val) ref.Val { return joinTexts(list, types.String("")) })),
		cel.MemberOverload("list_join_string", []*cel.Type{cel.ListType(cel.StringType), cel.StringType},
			cel.StringType, cel.BinaryBinding(joinTexts)))
	// format is for messages; a filter has none.
	noFormat = cel.Function("format", cel.DisableDeclaration(true),
		cel.MemberOverload("string_format", []*cel.Type{cel.StringType, cel.ListType(cel.DynType)}, cel.StringType))
)

func replaceText(args ...ref.Val) ref.Val {
	s, old, by := string(args[0].(types.String)), string(args[1].(types.String)), string(args[2].(types.String))
	count := strings.Count(s, old)
	n := -1
	if len(args) > 3 {
		if i := int64(args[3].(types.Int)); i >= 0 && i < int64(count) {
			n, count = int(i), int(i)
		}
	}
	if grown := count * (len(by) - len(old)); grown > maxText-len(s) && grown > 0 {
		return types.NewErr("the text becomes longer than %d bytes", maxText)
	}
	return types.String(strings.Replace(s, old, by, n))
}

func joinTexts(list, separator ref.Val) ref.Val {
	texts, sep := list.(traits.Lister), string(separator.(types.String))
	var out strings.Builder
	for it, first := texts.Iterator(), true; it.HasNext() == types.True; first = false {
		text, ok := it.Next().(types.String)
		if !ok {
			return types.NewErr("join: not a list of texts")
		}
		if !first {
			out.WriteString(sep)
		}
		if out.Len()+len(text)+len(sep) > maxText {
			return types.NewErr("the text becomes longer than %d bytes", maxText)
		}
		out.WriteString(string(text))
	}
	return types.String(out.String())
}

// expression is a compiled CEL expression. It is immutable and may be used from any
// goroutine.
type expression struct {
	program cel.Program
	// fields are the fields of spec that the expression uses, by JSON name; nil for all. The
	// others are not decoded.
	fields map[string]struct{}
}

// compileExpression returns a *federation.RuleError for each mistake.
func compileExpression(text string) (*expression, []error) {
	mistake := func(err error) []error { return []error{&federation.RuleError{Field: "expression", Err: err}} }
	if len(text) > maxExpression {
		return nil, mistake(fmt.Errorf("is longer than %d bytes", maxExpression))
	}
	env, err := environment()
	if err != nil {
		return nil, mistake(err)
	}
	checked, issues := env.Compile(aliasNamespace(text))
	if issues.Err() != nil {
		return nil, mistakesOf(issues)
	}
	if out := checked.OutputType(); !out.IsExactType(types.BoolType) {
		hint := ""
		if out.Kind() == types.DynKind {
			hint = `: compare it with something, for example "== true"`
		}
		return nil, mistake(fmt.Errorf("its result is %s, want bool%s", out, hint))
	}
	program, err := env.Program(checked, cel.EvalOptions(cel.OptOptimize), cel.CostLimit(maxCost))
	if err != nil {
		return nil, mistake(err)
	}
	return &expression{program: program, fields: fieldsOf(checked)}, nil
}

// message removes details of this package from CEL's messages.
var message = strings.NewReplacer(" (in container '')", "", namespaceAlias, "namespace")

func mistakesOf(issues *cel.Issues) []error {
	var out []error
	for _, issue := range issues.Errors() {
		if len(out) == maxMistakes {
			break
		}
		e := &federation.RuleError{Field: "expression", Err: errors.New(text.Abbreviate(message.Replace(issue.Message)))}
		if issue.Location != nil && issue.Location.Line() > 0 {
			e.Line, e.Column = issue.Location.Line(), issue.Location.Column()+1
		}
		out = append(out, e)
	}
	return out
}

// namespaceAlias replaces the variable namespace, a reserved word of CEL. It has the same
// length, so that columns stay.
const namespaceAlias = "__nspace_"

// aliasNamespace replaces the variable namespace by its alias, but not fields of that name,
// texts and comments. The lexical rules are CEL's.
func aliasNamespace(text string) string {
	if !strings.Contains(text, "namespace") {
		return text
	}
	var out strings.Builder
	var before, last byte // of the tokens so far, the ends of the last two
	for i := 0; i < len(text); {
		n := 1
		switch c := text[i]; {
		case c == ' ' || c == '\t' || c == '\r' || c == '\n' || c == '\f':
			out.WriteByte(c)
			i++
			continue
		case strings.HasPrefix(text[i:], "//"):
			if n = strings.IndexByte(text[i:], '\n'); n < 0 {
				n = len(text) - i
			}
			out.WriteString(text[i : i+n])
			i += n
			continue
		case c == '"' || c == '\'' || c == '`':
			n = quotedLen(text[i:], c == '`')
		case isWord(c):
			for n = 1; i+n < len(text) && isWord(text[i+n]); n++ {
			}
			word := text[i : i+n]
			switch {
			case i+n < len(text) && (text[i+n] == '"' || text[i+n] == '\'') && strings.Trim(word, "rRbB") == "":
				n += quotedLen(text[i+n:], strings.ContainsAny(word, "rR"))
			case word == "namespace" && last != '.' && (last != '?' || before != '.'):
				out.WriteString(namespaceAlias)
				i, before, last = i+n, last, 'e'
				continue
			}
		}
		out.WriteString(text[i : i+n])
		i += n
		before, last = last, text[i-1]
	}
	return out.String()
}

func isWord(c byte) bool {
	return c == '_' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
}

// quotedLen returns the length of the text literal at the start of text, or of all text when
// the literal is not closed.
func quotedLen(text string, raw bool) int {
	quote := text[:1]
	if triple := strings.Repeat(quote, 3); strings.HasPrefix(text, triple) {
		quote = triple
	}
	for i := len(quote); i < len(text); i++ {
		if strings.HasPrefix(text[i:], quote) {
			return i + len(quote)
		}
		if text[i] == '\\' && !raw {
			i++
		}
	}
	return len(text)
}

// fieldsOf returns the fields of spec that an expression names, nil when it uses spec in
// another way.
func fieldsOf(checked *cel.Ast) map[string]struct{} {
	fields := map[string]struct{}{}
	root := ast.NavigateAST(checked.NativeRep())
	for _, e := range ast.MatchDescendants(root, ast.KindMatcher(ast.IdentKind)) {
		if strings.TrimPrefix(e.AsIdent(), ".") != "spec" {
			continue
		}
		parent, ok := e.Parent()
		if !ok || parent.Kind() != ast.SelectKind {
			return nil
		}
		fields[parent.AsSelect().FieldName()] = struct{}{}
	}
	return fields
}

// eval evaluates the expression for a resource. md may be decoded already.
func (e *expression) eval(r *mirror.Resource, md metadata) (bool, error) {
	out, _, err := e.program.Eval(&variables{resource: r, key: r.Key(), metadata: md, fields: e.fields})
	if err != nil {
		return false, err
	}
	ok, isBool := out.Value().(bool)
	if !isBool {
		return false, fmt.Errorf("its result is %s, want bool", out.Type().TypeName())
	}
	return ok, nil
}

// variables is the cel.Activation of one evaluation. It decodes only the variables in use.
type variables struct {
	resource *mirror.Resource
	key      mirror.Key
	metadata metadata
	fields   map[string]struct{}
	spec     any
}

// Parent implements cel.Activation.
func (v *variables) Parent() cel.Activation { return nil }

// ResolveName implements cel.Activation.
func (v *variables) ResolveName(name string) (any, bool) {
	switch name {
	case "kind":
		return v.key.Kind.Kind, true
	case "group":
		return v.key.Kind.Group, true
	case namespaceAlias:
		return v.key.Namespace, true
	case "name":
		return v.key.Name, true
	case "labels":
		return v.metadata.of(v.resource).Labels, true
	case "annotations":
		return v.metadata.of(v.resource).Annotations, true
	case "spec":
		if v.spec == nil {
			spec, err := specOf(v.resource, v.fields)
			if err != nil {
				v.spec = types.WrapErr(err)
			} else {
				v.spec = spec
			}
		}
		return v.spec, true
	}
	return nil, false
}
