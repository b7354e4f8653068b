package tfvars

import (
	"fmt"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
)

// maxNesting is how deep an expression may go. The HCL parsers and evaluators
// recurse once a level without a limit of their own, and a Go stack that
// overflows ends the process: a megabyte of "(" is enough.
const maxNesting = 1000

// checkNesting refuses a native-syntax file, or one expression, that is too
// deep to be parsed. It goes by the lexer alone, which does not recurse.
//
// Brackets nest, and so do operators, one within the other or to the left. The
// depth is therefore the number of brackets and operators before a token, less
// what a closed bracket held and what a separator has ended.
func checkNesting(name string, source []byte) error {
	tokens, _ := hclsyntax.LexConfig(source, name, hcl.InitialPos) // the parser reports its diagnostics
	type level struct {
		opened hclsyntax.TokenType
		held   int
	}
	levels := []level{{opened: hclsyntax.TokenNil}}
	depth := 0
	for _, token := range tokens {
		top := &levels[len(levels)-1]
		switch token.Type {
		case hclsyntax.TokenOParen, hclsyntax.TokenOBrack, hclsyntax.TokenOBrace, hclsyntax.TokenOQuote,
			hclsyntax.TokenOHeredoc, hclsyntax.TokenTemplateInterp, hclsyntax.TokenTemplateControl:
			top.held++
			depth++
			levels = append(levels, level{opened: token.Type})
		case hclsyntax.TokenCParen, hclsyntax.TokenCBrack, hclsyntax.TokenCBrace,
			hclsyntax.TokenCQuote, hclsyntax.TokenCHeredoc, hclsyntax.TokenTemplateSeqEnd:
			if len(levels) == 1 {
				continue // a closing bracket too many: a syntax error
			}
			depth -= top.held
			levels = levels[:len(levels)-1]
			// The parts of a template stand side by side, but %{if} nests.
			if top.opened == hclsyntax.TokenTemplateInterp {
				levels[len(levels)-1].held--
				depth--
			}
		case hclsyntax.TokenComma:
			depth -= top.held
			top.held = 0
		case hclsyntax.TokenNewline:
			// Within ( and [ a line break does not end an expression.
			if top.opened == hclsyntax.TokenNil || top.opened == hclsyntax.TokenOBrace {
				depth -= top.held
				top.held = 0
			}
		case hclsyntax.TokenBang, hclsyntax.TokenMinus, hclsyntax.TokenQuestion, hclsyntax.TokenDot,
			hclsyntax.TokenPlus, hclsyntax.TokenStar, hclsyntax.TokenSlash, hclsyntax.TokenPercent,
			hclsyntax.TokenAnd, hclsyntax.TokenOr, hclsyntax.TokenEqualOp, hclsyntax.TokenNotEqual,
			hclsyntax.TokenLessThan, hclsyntax.TokenLessThanEq, hclsyntax.TokenGreaterThan, hclsyntax.TokenGreaterThanEq:
			top.held++
			depth++
		}
		if depth > maxNesting {
			return tooDeep(name, token.Range.Start.Line)
		}
	}
	return nil
}

// checkJSONNesting does the same for a JSON file. Expressions within its
// strings are not looked at: who parses one checks it first.
func checkJSONNesting(name string, source []byte) error {
	depth, line := 0, 1
	inString, escaped := false, false
	for _, c := range source {
		switch {
		case c == '\n':
			line++
		case escaped:
			escaped = false
		case inString && c == '\\':
			escaped = true
		case c == '"':
			inString = !inString
		case inString:
		case c == '[', c == '{':
			depth++
		case c == ']', c == '}':
			depth--
		}
		if depth > maxNesting {
			return tooDeep(name, line)
		}
	}
	return nil
}

func tooDeep(name string, line int) error {
	return fmt.Errorf("%s:%d: nested more than %d levels deep", name, line, maxNesting)
}
