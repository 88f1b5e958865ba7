// All ranks as curves: the range from the emptiest to the fullest one, the median, and by name the ranks that differ from it.

export const RANGE = "rank_range";
const MEDIAN = "rank_median";
const TONES = ["run-1", "run-3", "run-5", "run-4"]; // one for each rank with a name

// `grid` is the response of the ranks API. A rank differs if its maximum is farther from the median of all maxima than `evenRatio`
// of it. Return a response like that of the series API, with the name, the swatch and the color of each curve in `curves`.
export function overRanks(grid, evenRatio) {
  const columns = grid.step.map((_, index) => grid.ranks.map(({ max }) => max[index]).filter((value) => value !== null).sort((a, b) => a - b));
  const of = (choose) => columns.map((values) => (values.length ? choose(values) : null));
  const flat = (values) => ({ min: values, max: values, last: values });
  const [min, max] = [of((values) => values[0]), of((values) => values.at(-1))];
  const series = { [RANGE]: { min, max, last: max }, [MEDIAN]: flat(of(median)) };
  const curves = {
    [RANGE]: { name: `Range of ${grid.ranks.length} ranks`, swatch: "swatch-reserved_bytes", color: "curve-reserved", width: 0.75 },
    [MEDIAN]: { name: "Median of the ranks", swatch: "swatch-peak_allocated_bytes", color: "curve-peak", width: 2 },
  };
  outliers(grid.ranks, evenRatio).forEach(({ rank, max: values }, index) => {
    series[`rank_${index}`] = flat(values);
    curves[`rank_${index}`] = { name: `Rank ${rank}`, swatch: TONES[index], color: TONES[index], width: 1.5 };
  });
  return { step: grid.step, time_s: grid.time_s, samples: grid.step.length, series, curves };
}

function outliers(ranks, evenRatio) {
  const peaks = ranks.map((rank) => ({ rank, peak: Math.max(...rank.max.filter((value) => value !== null)) })).filter(({ peak }) => peak > 0);
  if (peaks.length < 3) return [];
  const middle = median(peaks.map(({ peak }) => peak).sort((a, b) => a - b));
  const distance = ({ peak }) => Math.abs(peak - middle);
  const far = peaks.filter((one) => distance(one) > evenRatio * middle).sort((a, b) => distance(b) - distance(a));
  return far.slice(0, TONES.length).map(({ rank }) => rank);
}

function median(sorted) {
  const half = sorted.length >> 1;
  return sorted.length % 2 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
}
