package filter

import (
	"errors"
	"fmt"
	"strings"
	"sync"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common"
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
	// maxParens bounds the nesting of an expression, and maxLoops the nesting of its loops. A loop over the
	// result of another loop counts as nested.
	maxParens = 64
	maxLoops  = 8
	// maxRegexp bounds a compiled regular expression, in instructions.
	maxRegexp = 1000
	// maxCost bounds one evaluation, in CEL's units: some 100 ms at worst, and enough for 20,000 endpoints.
	// CEL could bound the memory too, but it would read all of spec each time. The cost of an expression
	// grows with the values that it builds.
	maxCost = 200_000
	// maxText bounds the text that an expression builds, in bytes. CEL counts the cost of a text only after
	// it is built.
	maxText = 1 << 20
	// maxMistakes bounds the reported mistakes of one expression.
	maxMistakes = 8
)

// environment returns the CEL environment. The first expression builds it: most relays have no expression.
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

// These replace functions of ext.Strings whose result may be orders of magnitude longer than their arguments.
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
	// A filter has no use for format.
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
	// fields are the fields of spec that the expression uses, by JSON name; nil for all. Other fields are
	// not decoded.
	fields map[string]struct{}
}

// compileExpression compiles an expression. It adds mistakes to mistakes; with any, the result is not valid.
func compileExpression(text string, mistakes *federation.Mistakes) *expression {
	wrong := func(err error) *expression {
		mistakes.Add(err, "expression")
		return nil
	}
	if len(text) > maxExpression {
		return wrong(fmt.Errorf("is longer than %d bytes", maxExpression))
	}
	env, err := environment()
	if err != nil {
		return wrong(err)
	}
	checked, issues := compile(env, text)
	if issues.Err() != nil {
		for _, issue := range issues.Errors()[:min(len(issues.Errors()), maxMistakes)] {
			mistakes.Add(ruleError(issue), "expression")
		}
		return nil
	}
	if out := checked.OutputType(); !out.IsExactType(types.BoolType) {
		hint := ""
		if out.Kind() == types.DynKind {
			hint = `: compare it with something, for example "== true"`
		}
		return wrong(fmt.Errorf("its result is %s, want bool%s", out, hint))
	}
	program, err := env.Program(checked, cel.EvalOptions(cel.OptOptimize), cel.CostLimit(maxCost))
	mistakes.Add(err, "expression")
	return &expression{program: program, fields: fieldsOf(checked)}
}

// message removes details of this package from CEL's messages.
var message = strings.NewReplacer(" (in container '')", "", namespaceAlias, "namespace")

func ruleError(issue *cel.Error) *federation.RuleError {
	e := &federation.RuleError{Field: "expression", Err: errors.New(text.Abbreviate(message.Replace(issue.Message)))}
	if issue.Location != nil && issue.Location.Line() > 0 {
		e.Line, e.Column = issue.Location.Line(), issue.Location.Column()+1
	}
	return e
}

// namespaceAlias replaces the variable namespace, which is a reserved word of CEL. It has the same length, so
// the columns of mistakes are right.
const namespaceAlias = "__nspace_"

// compile compiles an expression. Where CEL refuses the variable namespace, compile replaces it by its alias
// and tries again.
func compile(env *cel.Env, text string) (*cel.Ast, *cel.Issues) {
	const reserved = "namespace"
	for {
		checked, issues := env.Compile(text)
		runes, source := []rune(text), common.NewTextSource(text)
		for _, issue := range issues.Errors() {
			at, ok := source.LocationOffset(issue.Location)
			if end := int(at) + len(reserved); ok && issue.Message == "reserved identifier: "+reserved && end <= len(runes) && string(runes[at:end]) == reserved {
				copy(runes[at:end], []rune(namespaceAlias))
			}
		}
		if string(runes) == text {
			return checked, issues
		}
		text = string(runes)
	}
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

// eval evaluates the expression for a resource.
func (e *expression) eval(r *mirror.Resource) (bool, error) {
	out, _, err := e.program.Eval(&variables{resource: r, key: r.Key(), fields: e.fields})
	if err != nil {
		return false, err
	}
	ok, isBool := out.Value().(bool)
	if !isBool {
		return false, fmt.Errorf("its result is %s, want bool", out.Type().TypeName())
	}
	return ok, nil
}

// variables is the cel.Activation of one evaluation. It decodes only the variables in use, and each once.
type variables struct {
	resource *mirror.Resource
	key      mirror.Key
	fields   map[string]struct{}
	metadata mirror.Metadata
	decoded  bool // metadata is set
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
	case "labels", "annotations":
		if !v.decoded {
			v.metadata, v.decoded = v.resource.Metadata(), true
		}
		if name == "labels" {
			return v.metadata.Labels, true
		}
		return v.metadata.Annotations, true
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
