// Command promql runs Prometheus' own engine over scrapes that it is given: rules and queries, at any time.
//
// It reads one JSON document from standard input and writes one to standard output. Scrapes go through
// Prometheus' parser of the exposition formats into its storage, with the markers of staleness that its
// scrape loop writes; rules are evaluated by its rule engine. Time is what the input says: nothing waits.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net/url"
	"os"
	"sort"
	"strconv"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/model/textparse"
	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/rules"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb"
)

// Scrape is what a target answered at a moment; without a text it did not answer.
type Scrape struct {
	AtS         float64           `json:"at_s"`
	Target      map[string]string `json:"target"`
	ContentType string            `json:"content_type"`
	Text        *string           `json:"text"`
	// Gone says that the target is no target any more: nothing is written of it but that its series end.
	Gone bool `json:"gone"`
}

// Query is an expression to be evaluated at a moment, or up to it if there is a step.
type Query struct {
	Expr  string  `json:"expr"`
	AtS   float64 `json:"at_s"`
	FromS float64 `json:"from_s"`
	StepS float64 `json:"step_s"`
}

// Input is all that is to be done.
type Input struct {
	Scrapes   []Scrape `json:"scrapes"`
	Rules     string   `json:"rules"`
	IntervalS float64  `json:"interval_s"`
	FromS     float64  `json:"from_s"`
	UntilS    float64  `json:"until_s"`
	Queries   []Query  `json:"queries"`
}

// Alert is one alert at one evaluation.
type Alert struct {
	AtS         float64           `json:"at_s"`
	Name        string            `json:"name"`
	State       string            `json:"state"`
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
}

// Series is one series of an answer: pairs of seconds and value.
type Series struct {
	Labels map[string]string `json:"labels"`
	Points [][2]any          `json:"points"`
}

// Answer is what a query gave.
type Answer struct {
	Error    string   `json:"error"`
	Warnings []string `json:"warnings"`
	Series   []Series `json:"series"`
}

// Output is all that came of it.
type Output struct {
	Alerts  []Alert  `json:"alerts"`
	Answers []Answer `json:"answers"`
}

func main() {
	if err := run(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(in io.Reader, out io.Writer) error {
	var input Input
	decoder := json.NewDecoder(in)
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&input); err != nil {
		return fmt.Errorf("the input: %w", err)
	}
	folder, err := os.MkdirTemp("", "promql-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(folder)
	db, err := open(folder)
	if err != nil {
		return err
	}
	defer db.Close()
	if err := store(db, input.Scrapes); err != nil {
		return err
	}
	parse := parser.NewParser(parser.Options{})
	engine := promql.NewEngine(promql.EngineOpts{
		MaxSamples:           50_000_000,
		Timeout:              time.Minute,
		LookbackDelta:        5 * time.Minute,
		EnableAtModifier:     true,
		EnableNegativeOffset: true,
		Parser:               parse,
	})
	output := Output{Alerts: []Alert{}, Answers: []Answer{}}
	if input.Rules != "" {
		if output.Alerts, err = evaluate(db, engine, parse, input); err != nil {
			return err
		}
	}
	for _, query := range input.Queries {
		output.Answers = append(output.Answers, ask(db, engine, query))
	}
	return json.NewEncoder(out).Encode(output)
}

func open(folder string) (*tsdb.DB, error) {
	options := tsdb.DefaultOptions()
	// One block: scrapes of many targets come in any order.
	options.MinBlockDuration = int64(24 * time.Hour / time.Millisecond)
	options.MaxBlockDuration = options.MinBlockDuration
	options.RetentionDuration = 0
	return tsdb.Open(folder, slog.New(slog.DiscardHandler), nil, options, tsdb.NewDBStats())
}

// store writes scrapes as the scrape loop does: with `up`, and an end for each series that is gone.
func store(db *tsdb.DB, scrapes []Scrape) error {
	sort.SliceStable(scrapes, func(i, j int) bool { return scrapes[i].AtS < scrapes[j].AtS })
	last := map[string]map[uint64]labels.Labels{}
	for _, scrape := range scrapes {
		target := labels.FromMap(scrape.Target)
		at := millis(scrape.AtS)
		appender := db.Appender(context.Background())
		present := map[uint64]labels.Labels{}
		if scrape.Text != nil {
			if err := appendText(appender, scrape, at, present); err != nil {
				return fmt.Errorf("the scrape of %s at %g: %w", target, scrape.AtS, err)
			}
		}
		up := 0.0
		if scrape.Text != nil {
			up = 1
		}
		if scrape.Gone {
			up = math.Float64frombits(value.StaleNaN)
		}
		if _, err := appender.Append(0, withTarget(labels.FromStrings(labels.MetricName, "up"), target), at, up); err != nil {
			return err
		}
		for hash, series := range last[target.String()] {
			if _, ok := present[hash]; !ok {
				if _, err := appender.Append(0, series, at, math.Float64frombits(value.StaleNaN)); err != nil {
					return err
				}
			}
		}
		last[target.String()] = present
		if err := appender.Commit(); err != nil {
			return err
		}
	}
	return nil
}

func appendText(appender storage.Appender, scrape Scrape, at int64, present map[uint64]labels.Labels) error {
	kind := scrape.ContentType
	if kind == "" {
		kind = "text/plain; version=0.0.4"
	}
	reader, err := textparse.New([]byte(*scrape.Text), kind, labels.NewSymbolTable(), textparse.ParserOptions{})
	if err != nil {
		return err
	}
	target := labels.FromMap(scrape.Target)
	for {
		entry, err := reader.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if entry != textparse.EntrySeries {
			continue
		}
		_, _, number := reader.Series()
		var found labels.Labels
		reader.Labels(&found)
		series := withTarget(found, target)
		if _, ok := present[series.Hash()]; ok {
			return fmt.Errorf("%s stands there twice", series)
		}
		if _, err := appender.Append(0, series, at, number); err != nil {
			return err
		}
		present[series.Hash()] = series
	}
}

// withTarget adds the labels of the target; those of the metric give way, as without honor_labels.
func withTarget(series, target labels.Labels) labels.Labels {
	builder := labels.NewBuilder(series)
	target.Range(func(label labels.Label) {
		if old := series.Get(label.Name); old != "" {
			builder.Set("exported_"+label.Name, old)
		}
		builder.Set(label.Name, label.Value)
	})
	return builder.Labels()
}

func evaluate(db *tsdb.DB, engine *promql.Engine, parse parser.Parser, input Input) ([]Alert, error) {
	groups, problems := rulefmt.Parse(
		[]byte(input.Rules), false, model.UTF8Validation, parse, slog.New(slog.DiscardHandler),
	)
	if len(problems) > 0 {
		return nil, fmt.Errorf("the rules: %w", errors.Join(problems...))
	}
	var alerting []*rules.AlertingRule
	for _, group := range groups.Groups {
		for _, rule := range group.Rules {
			expression, err := parse.ParseExpr(rule.Expr)
			if err != nil {
				return nil, err
			}
			alerting = append(alerting, rules.NewAlertingRule(
				rule.Alert, expression, time.Duration(rule.For), time.Duration(rule.KeepFiringFor),
				labels.FromMap(rule.Labels), labels.FromMap(rule.Annotations),
				labels.EmptyLabels(), "", true, slog.New(slog.DiscardHandler),
			))
		}
	}
	query := rules.EngineQueryFunc(engine, db)
	found := []Alert{}
	for at := input.FromS; at <= input.UntilS; at += input.IntervalS {
		for _, rule := range alerting {
			moment := time.UnixMilli(millis(at)).UTC()
			if _, err := rule.Eval(context.Background(), 0, moment, query, &url.URL{}, 0); err != nil {
				return nil, fmt.Errorf("%s at %g: %w", rule.Name(), at, err)
			}
			for _, alert := range rule.ActiveAlerts() {
				found = append(found, Alert{
					AtS: at, Name: rule.Name(), State: alert.State.String(),
					Labels: alert.Labels.Map(), Annotations: alert.Annotations.Map(),
				})
			}
		}
	}
	return found, nil
}

func ask(db *tsdb.DB, engine *promql.Engine, query Query) Answer {
	ctx := context.Background()
	var prepared promql.Query
	var err error
	end := time.UnixMilli(millis(query.AtS)).UTC()
	if query.StepS > 0 {
		step := time.Duration(query.StepS * float64(time.Second))
		prepared, err = engine.NewRangeQuery(ctx, db, nil, query.Expr, time.UnixMilli(millis(query.FromS)).UTC(), end, step)
	} else {
		prepared, err = engine.NewInstantQuery(ctx, db, nil, query.Expr, end)
	}
	if err != nil {
		return Answer{Error: err.Error(), Warnings: []string{}, Series: []Series{}}
	}
	defer prepared.Close()
	result := prepared.Exec(ctx)
	answer := Answer{Warnings: []string{}, Series: []Series{}}
	if result.Err != nil {
		answer.Error = result.Err.Error()
		return answer
	}
	warnings, infos := result.Warnings.AsStrings(query.Expr, 0, 0)
	answer.Warnings = append(append(answer.Warnings, warnings...), infos...)
	switch found := result.Value.(type) {
	case promql.Vector:
		for _, sample := range found {
			answer.Series = append(answer.Series, Series{sample.Metric.Map(), [][2]any{point(sample.T, sample.F)}})
		}
	case promql.Scalar:
		answer.Series = append(answer.Series, Series{map[string]string{}, [][2]any{point(found.T, found.V)}})
	case promql.Matrix:
		for _, series := range found {
			points := [][2]any{}
			for _, one := range series.Floats {
				points = append(points, point(one.T, one.F))
			}
			answer.Series = append(answer.Series, Series{series.Metric.Map(), points})
		}
	default:
		answer.Error = "the expression gives a " + string(result.Value.Type())
	}
	return answer
}

// point holds the value as Prometheus' API does, as text: JSON has no NaN.
func point(at int64, number float64) [2]any {
	return [2]any{float64(at) / 1000, strconv.FormatFloat(number, 'f', -1, 64)}
}

func millis(seconds float64) int64 {
	return int64(math.Round(seconds * 1000))
}
